"""A bench of replicas for routers, without engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.protocols import CacheWatcher, Watch
from sim.request import Request


@dataclass
class Bench:
    """A routing context without engines."""

    num_replicas: int
    seed: int = 0
    now_ns: int = 0
    sessions: dict[int, int] = field(default_factory=dict)
    prefixes: dict[int, list[int]] = field(default_factory=dict)
    watcher: CacheWatcher | None = None

    def session(self, request: Request) -> int | None:
        return self.sessions.get(request.index)

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
