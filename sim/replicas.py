"""What a router may know of the engines it chooses among."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from sim.engine import Engine
from sim.protocols import CacheWatcher, Watch
from sim.request import Request
from sim.request_table import RequestTable


class Replicas:
    """The engines behind one router: a `sim.protocols.RoutingContext`."""

    def __init__(
        self, env: simpy.Environment, engines: Sequence[Engine], table: RequestTable, seed: int
    ) -> None:
        self._env = env
        self._engines = engines
        self._table = table
        self.num_replicas = len(engines)
        self.seed = seed
        self._changed_ns: int | None = None

    @property
    def now_ns(self) -> int:
        """Simulated time; while a watcher is told with times, that of the change."""
        if self._changed_ns is not None:
            return self._changed_ns
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    def session(self, request: Request) -> int | None:
        """The conversation a request belongs to; None where the workload has none."""
        sessions = self._table.session
        return None if sessions is None else int(sessions[request.index])

    def prefix_ids(self, request: Request) -> Sequence[int]:
        """Ids of its prompt's whole prefix blocks, the shortest prefix first; maybe none."""
        chains = self._table.chains
        if chains is None:
            return ()
        start = int(chains.offsets[request.index])
        whole = min(int(chains.tokens[request.index]), request.prompt_tokens) // chains.block_tokens
        ids: list[int] = chains.ids[start : start + whole].tolist()
        return ids

    def watch_caches(self, watcher: CacheWatcher, when: Watch = "at once") -> None:
        """Be told of what replicas' prefix caches hold."""
        for position, engine in enumerate(self._engines):
            tell = partial(watcher, position)
            if when == "when asked, with times":
                tell = partial(self._tell_with_time, engine, tell)
            engine.view.kv.watch(tell, when=when)

    def catch_up(self, replica: int) -> None:
        """Be told of what this replica has evicted by now."""
        self._engines[replica].catch_up()

    def _tell_with_time(
        self, engine: Engine, tell: Callable[[int, int], None], prefix_id: int, blocks: int
    ) -> None:
        self._changed_ns = engine.evicting_ns
        tell(prefix_id, blocks)
        self._changed_ns = None
