"""Prefixes on their way between engines: a router may let an engine fetch what a peer has cached.

A fetch has two ends, each a residence without a request to serve: the peer's pins the cached blocks
until the last byte has left, the engine's holds the blocks they are written to. When the transfer
is complete they are cached like any others, and the request joins the queue and finds them. The
peer keeps its copy, so a popular prefix spreads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import simpy

from sim.clock import call_after
from sim.engine.engine import Engine
from sim.engine.leaving import refusal
from sim.engine.transfers import FetchedPrefixes
from sim.fleet.handover import TransferConfig
from sim.network import Flow, Network
from sim.protocols import Fetch
from sim.recorder import RequestLog
from sim.request import Request


@dataclass(eq=False, slots=True)
class _UnderWay:
    here: Engine
    peer: Engine
    held: Request
    """The residence that holds the blocks here."""
    lent: Request
    """The residence that pins the blocks at the peer."""
    requests: dict[Request, int] = field(default_factory=dict)
    """Waiting requests, each with the time since when, in ns."""
    flow: Flow | None = None
    is_over: bool = False


class Fetches:
    """Submits requests to prefill-only engines; those that fetch, once their prefix has arrived.

    Such engines do not jump, so blocks may be allocated and freed between any two plans.
    """

    def __init__(
        self,
        env: simpy.Environment,
        config: TransferConfig,
        network: Network,
        log: RequestLog,
        engines: Sequence[Engine],
        source: Callable[[Request, int], Fetch | None],
    ) -> None:
        self._env = env
        self._config = config
        self._network = network
        self._log = log
        self._engines = engines
        self._source = source
        self._position = {engine.replica: index for index, engine in enumerate(engines)}
        self._fetched: dict[Engine, FetchedPrefixes] = {}
        self._to: dict[Engine, list[_UnderWay]] = {engine: [] for engine in engines}
        for engine in engines:
            network.add_link(f"in {engine.replica}", config.prefill_nic_bytes_per_s)
            feature = FetchedPrefixes(engine.lifecycle, partial(self._crashed, engine))
            self._fetched[engine] = feature
            engine.add(feature)

    def submit(self, engine: Engine, request: Request) -> None:
        """Give a request to its engine, now or when its fetched prefix has arrived."""
        fetch = self._source(request, self._position[engine.replica])
        if fetch is None or not self._start(engine, self._engines[fetch.replica], fetch, request):
            engine.submit(request)

    def _start(self, here: Engine, peer: Engine, fetch: Fetch, request: Request) -> bool:
        """Start a fetch. False and no change if there is nothing to fetch, or no room for it."""
        if peer is here or not peer.is_up or refusal(request, here.view) is not None:
            return False
        tokens = min(fetch.tokens, request.prompt_tokens - 1)
        size = here.view.kv.block_size
        lent, held = _residence(request, tokens), _residence(request, tokens)
        there, local = peer.view.kv.lookup(lent), here.view.kv.lookup(held)
        blocks = there.blocks - local.blocks
        for one in self._to[here]:  # is the prefix on its way already?
            if blocks > 0 and set(there.nodes) <= set(one.lent.pinned):
                self._wait(one, request)
                return True
        held.num_target_tokens = there.blocks * size
        if blocks <= 0 or there.is_fresh or not here.view.kv.fits(held, local):
            return False
        peer.view.kv.pin(lent, there)
        self._fetched[peer].lend(1)
        here.view.kv.pin(held, local)
        here.view.kv.extend(held, there.blocks * size)
        one = _UnderWay(here, peer, held, lent)
        self._to[here].append(one)
        self._wait(one, request)
        num_bytes = blocks * size * self._config.bytes_per_token + self._config.fixed_bytes
        core = ("core",) if self._config.core_bytes_per_s is not None else ()
        path = (f"out {peer.replica}", *core, f"in {here.replica}")

        def send() -> None:
            if not one.is_over:
                one.flow = self._network.start(
                    path, num_bytes, lambda: self._arrived(one), latency_ns=self._config.latency_ns
                )

        # What the peer computes at this moment can be hit already, but is not there yet.
        call_after(self._env, max(peer.gpu_free_ns - int(self._env.now), 0), send)
        return True

    def _wait(self, one: _UnderWay, request: Request) -> None:
        one.requests[request] = int(self._env.now)
        give_up = partial(self._leave, one, request)
        self._fetched[one.here].await_prefix(request, give_up, int(self._env.now))

    def _arrived(self, one: _UnderWay) -> None:
        if one.is_over:
            return
        kv, tokens = one.here.view.kv, one.held.num_target_tokens
        kv.register(one.held, tokens)
        fetched = tokens - one.held.cached_tokens
        kv.release(one.held, tokens, will_return=False)
        self._end(one)
        now_ns = int(self._env.now)
        for request, since_ns in one.requests.items():
            self._log.fetched[request.index] = (now_ns - since_ns, fetched)
            fetched = 0  # the time of those who waited with the first
            self._fetched[one.here].prefix_arrived(request)

    def _leave(self, one: _UnderWay, request: Request) -> None:
        """Drop a cancelled request; with the last one, cancel the fetch."""
        del one.requests[request]
        if not one.requests:
            self._give_up(one)

    def _give_up(self, one: _UnderWay) -> None:
        """Cancel a fetch and free the blocks at both ends."""
        one.here.view.kv.release(one.held, one.held.cached_tokens, will_return=False)
        self._end(one)

    def _end(self, one: _UnderWay) -> None:
        """Stop the flow, if it is active, and release what the peer pinned."""
        one.is_over = True
        self._to[one.here].remove(one)
        if one.flow is not None:
            self._network.cancel(one.flow)
        one.peer.view.kv.release(one.lent, one.lent.cached_tokens, will_return=False)
        self._fetched[one.peer].lend(-1)

    def _crashed(self, engine: Engine) -> None:
        """Handle a crash: fetches to the engine are lost, those from it are computed instead."""
        for one in list(self._to[engine]):
            self._end(one)
        for one in [one for to in self._to.values() for one in to if one.peer is engine]:
            self._give_up(one)
            for request in one.requests:
                self._fetched[one.here].prefix_arrived(request)


def _residence(request: Request, tokens: int) -> Request:
    """Return a residence of a request's first tokens, which no engine computes."""
    found = Request(request.index, request.arrival_ns, tokens, 1)
    found.num_target_tokens = tokens + 1  # all of these blocks can be hit
    return found
