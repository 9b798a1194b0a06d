"""The engines behind one router: which take requests, their loads, and what policies see of
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from sim.clock import NS_PER_S, to_s
from sim.engine.batch import chunk_step
from sim.engine.engine import Engine
from sim.errors import PolicyError
from sim.fleet.handover import TransferConfig
from sim.protocols import CacheWatcher, ReplicaLoad, Router, Watch
from sim.request import Request
from sim.request_table import RequestTable

_RATE_FOR_NS = 100_000_000  # how long a measured prefill rate is used


class RoutedEngines:
    """The engines behind one router, a `sim.protocols.ServiceView`. O(1) per request, except for
    finding a replica that is up."""

    def __init__(
        self, env: simpy.Environment, engines: Sequence[Engine], router: Router, seed: int
    ) -> None:
        self._env = env
        self.engines = engines
        self.seed = seed
        self._router = router
        self.takes = [True] * len(engines)
        """By position: whether the engine takes requests."""
        self._loads = [ReplicaLoad(0, 0)] * len(engines)
        self.num_up = len(engines)
        self.num_starting = 0
        self.waiting = self.running = self.queued_tokens = 0
        self.decode: RoutedEngines | None = None
        """The engines that decode for these, if these only prefill."""
        self._rate: float | None = None
        self._rate_until_ns = -1
        self.on_load: Callable[[int], None] = lambda position: None
        """Called with the position of an engine whose load has changed."""
        self.ttfts_s: Callable[[float], list[float]] = lambda window_s: []
        self._router_down: Callable[[int], None] = getattr(router, "down", _ignore)
        self._router_up: Callable[[int], None] = getattr(router, "up", _ignore)

    @property
    def now_ns(self) -> int:
        """Simulated time in nanoseconds."""
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV pools of replicas that are up, in tokens."""
        up = (e.view for e, takes in zip(self.engines, self.takes, strict=True) if takes)
        return sum(view.kv.usable_blocks * view.config.block_size for view in up)

    @property
    def kv_use(self) -> float:
        """Share of KV blocks held, averaged over replicas that are up."""
        up = [e for e, takes in zip(self.engines, self.takes, strict=True) if takes]
        return sum(1 - e.free_blocks / e.view.kv.usable_blocks for e in up) / max(len(up), 1)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens per second, measured over all steps with prefills of all engines;
        slightly delayed."""
        if self.now_ns >= self._rate_until_ns:
            tokens = sum(engine.prefill_tokens for engine in self.engines)
            spent_ns = sum(engine.prefill_ns for engine in self.engines)
            self._rate = tokens / spent_ns * NS_PER_S if spent_ns else None
            self._rate_until_ns = self.now_ns + _RATE_FOR_NS
        return self._rate

    def publish(self, position: int, load: ReplicaLoad) -> None:
        """Record an engine's new load."""
        if self.takes[position]:
            self._add(self._loads[position], -1)
            self._add(load, 1)
        self._loads[position] = load
        self._router.publish(position, load)
        self.on_load(position)

    def choose(self, request: Request) -> int:
        """Return the position of the engine to send a request to; any, if none takes requests."""
        choice = self._router.choose(request)
        if not 0 <= choice < len(self.engines):
            raise PolicyError(f"the router chose replica {choice} of {len(self.engines)}")
        return choice if self.takes[choice] else self.next_up(choice)

    def next_up(self, position: int) -> int:
        """Return the next position after this one that takes requests; this one, if none does."""
        n = len(self.engines)
        return next(
            (i % n for i in range(position + 1, position + n) if self.takes[i % n]), position
        )

    def down(self, position: int) -> None:
        """Stop sending requests to a position."""
        if not self.takes[position]:
            return
        self.takes[position] = False
        self.num_up -= 1
        self._add(self._loads[position], -1)
        self._router_down(position)

    def up(self, position: int) -> None:
        """Allow requests to a position (again)."""
        if self.takes[position]:
            return
        self.takes[position] = True
        self.num_up += 1
        self._add(self._loads[position], 1)
        self._router_up(position)

    def load(self, position: int) -> int:
        """Return the number of requests in an engine."""
        return self._loads[position].waiting + self._loads[position].running

    def _add(self, load: ReplicaLoad, sign: int) -> None:
        self.waiting += sign * load.waiting
        self.running += sign * load.running
        self.queued_tokens += sign * load.queued_tokens


def _ignore(position: int) -> None:
    """Stands for an optional method that a router does not have."""


class Replicas:
    """What a router may know of its engines: a `sim.protocols.RoutingContext`."""

    def __init__(
        self,
        env: simpy.Environment,
        engines: Sequence[Engine],
        table: RequestTable,
        seed: int,
        transfer: TransferConfig | None = None,
    ) -> None:
        """``transfer``: given if the engines may fetch prefixes from each other."""
        self._env = env
        self._engines = engines
        self._table = table
        self.num_replicas = len(engines)
        self.seed = seed
        self.fetch_bytes_per_s: float | None = None
        """Bandwidth of the network between the replicas; None if they cannot fetch from each
        other."""
        self.kv_bytes_per_token = 0
        """Bytes per token of a fetched prefix."""
        if transfer is not None:
            nic, core = transfer.prefill_nic_bytes_per_s, transfer.core_bytes_per_s
            self.fetch_bytes_per_s = nic if core is None else min(nic, core)
            self.kv_bytes_per_token = transfer.bytes_per_token
        self._changed_ns: int | None = None

    @property
    def now_ns(self) -> int:
        """Simulated time; while a watcher is told with times, that of the change."""
        if self._changed_ns is not None:
            return self._changed_ns
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    def session(self, request: Request) -> int | None:
        """Return the conversation of a request; None if the workload has no sessions."""
        sessions = self._table.session
        return None if sessions is None else int(sessions[request.index])

    def extra(self, name: str, request: Request) -> int | None:
        """Return an optional column's value for a request; None if there is no such column."""
        column = self._table.extras.get(name)
        return None if column is None else int(column[request.index])

    def prefix_ids(self, request: Request) -> Sequence[int]:
        """Return the ids of the prompt's whole prefix blocks, shortest prefix first; may be
        empty."""
        chains = self._table.chains
        if chains is None:
            return ()
        start = int(chains.offsets[request.index])
        whole = min(int(chains.tokens[request.index]), request.prompt_tokens) // chains.block_tokens
        ids: list[int] = chains.ids[start : start + whole].tolist()
        return ids

    @property
    def prefix_tokens(self) -> int:
        """Tokens per entry of `prefix_ids`; 0 if the workload has no prefixes."""
        return 0 if self._table.chains is None else self._table.chains.block_tokens

    def prefill_s(self, replica: int, cached_tokens: int, tokens: int) -> float:
        """Estimate the prefill time of a prompt on an idle engine, one chunk per step."""
        engine = self._engines[replica]
        budget, done, gpu_ns = engine.view.config.step_token_limit, 0, 0
        while done < tokens:
            chunk = min(budget, tokens - done)
            shape = chunk_step(engine.view, cached_tokens + done, chunk)
            gpu_ns += engine.cost.price(shape).gpu_ns
            done += chunk
        return to_s(gpu_ns)

    def watch_caches(self, watcher: CacheWatcher, when: Watch = "immediate") -> None:
        """Register a watcher for what the replicas' prefix caches hold."""
        for position, engine in enumerate(self._engines):
            tell = partial(watcher, position)
            if when == "deferred_timed":
                tell = partial(self._tell_with_time, engine, tell)
            engine.view.kv.watch(tell, when=when)

    def catch_up(self, replica: int) -> None:
        """Report to the watchers what this replica has evicted by now."""
        self._engines[replica].catch_up()

    def _tell_with_time(
        self, engine: Engine, tell: Callable[[int, int], None], prefix_id: int, blocks: int
    ) -> None:
        self._changed_ns = engine.view.kv.evicting_ns
        tell(prefix_id, blocks)
        self._changed_ns = None
