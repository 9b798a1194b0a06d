"""What a router may know of the engines it chooses among."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from sim.clock import to_s
from sim.engine import Engine
from sim.handover import TransferConfig
from sim.protocols import CacheWatcher, Watch
from sim.request import Request
from sim.request_table import RequestTable


class Replicas:
    """The engines behind one router: a `sim.protocols.RoutingContext`."""

    def __init__(
        self,
        env: simpy.Environment,
        engines: Sequence[Engine],
        table: RequestTable,
        seed: int,
        transfer: TransferConfig | None = None,
    ) -> None:
        """``transfer``: of engines that may fetch prefixes from each other."""
        self._env = env
        self._engines = engines
        self._table = table
        self._transfer = transfer
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

    @property
    def prefix_tokens(self) -> int:
        """Tokens that one of `prefix_ids` stands for; 0 where the workload has none."""
        return 0 if self._table.chains is None else self._table.chains.block_tokens

    @property
    def fetch_bytes_per_s(self) -> float | None:
        """Of the network between these replicas; None where they cannot fetch from each other."""
        transfer = self._transfer
        if transfer is None:
            return None
        core = transfer.core_bytes_per_s
        nic = transfer.prefill_nic_bytes_per_s
        return nic if core is None else min(nic, core)

    @property
    def kv_bytes_per_token(self) -> int:
        """Of what is fetched."""
        return 0 if self._transfer is None else self._transfer.bytes_per_token

    def prefill_s(self, replica: int, cached_tokens: int, tokens: int) -> float:
        """What a prompt takes an engine with nothing else to do, a chunk a step."""
        engine = self._engines[replica]
        budget, done, gpu_ns = engine.view.config.max_num_batched_tokens, 0, 0
        while done < tokens:
            chunk = min(budget, tokens - done)
            gpu_ns += engine.prefill_ns_alone(cached_tokens + done, chunk)
            done += chunk
        return to_s(gpu_ns)

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
        self._changed_ns = engine.view.kv.evicting_ns
        tell(prefix_id, blocks)
        self._changed_ns = None
