"""Routing contexts without engines, and a router whose engines fetch prefixes from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sim.fleet.routing import Replicas
from sim.protocols import CacheWatcher, Fetch, ReplicaLoad, RoutingContext, Watch
from sim.request import Request


@dataclass
class Bench:
    """A routing context without engines."""

    num_replicas: int
    seed: int = 0
    now_ns: int = 0
    sessions: dict[int, int] = field(default_factory=dict)
    prefixes: dict[int, list[int]] = field(default_factory=dict)
    extras: dict[str, dict[int, int]] = field(default_factory=dict)
    watcher: CacheWatcher | None = None

    def session(self, request: Request) -> int | None:
        return self.sessions.get(request.index)

    def extra(self, name: str, request: Request) -> int | None:
        return self.extras[name][request.index] if name in self.extras else None

    def prefix_ids(self, request: Request) -> Sequence[int]:
        return self.prefixes.get(request.index, ())

    def watch_caches(self, watcher: CacheWatcher, when: Watch = "immediate") -> None:
        self.watcher = watcher

    prefix_tokens: int = 8
    fetch_bytes_per_s: float | None = None
    kv_bytes_per_token: int = 1000

    def prefill_s(self, replica: int, cached_tokens: int, tokens: int) -> float:
        return 1e-3 * tokens

    def catch_up(self, replica: int) -> None:
        """Its watcher is told of everything at once."""


class Scripted:
    """Sends requests in turns; each fetches from engine 0 what that has cached."""

    contexts: ClassVar[list[RoutingContext]] = []

    def __init__(self, context: RoutingContext) -> None:
        self._context, self._next = context, -1
        self.contexts.append(context)

    def choose(self, request: Request) -> int:
        self._next += 1
        return self._next % self._context.num_replicas

    def source(self, request: Request, replica: int) -> Fetch | None:
        return Fetch(0, request.prompt_tokens) if replica else None

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Ignore loads: requests are sent in turns."""


def used_blocks(context: RoutingContext) -> list[int]:
    assert isinstance(context, Replicas)
    kvs = [engine.view.kv for engine in context._engines]
    return [kv.usable_blocks - kv.free_blocks for kv in kvs]
