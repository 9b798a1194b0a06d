"""What a router may know of the engines it chooses among."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import simpy

from sim.engine import Engine
from sim.protocols import CacheWatcher
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

    @property
    def now_ns(self) -> int:
        """Simulated time."""
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

    def watch_caches(self, watcher: CacheWatcher) -> None:
        """Be told of what replicas' prefix caches hold."""
        for position, engine in enumerate(self._engines):
            engine.view.kv.watch(partial(watcher, position))
