"""Pools of engines behind routers, fed from a request table: one simulation, start to end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import simpy

from sim.clock import Clock
from sim.engine.config import EngineConfig
from sim.engine.engine import Engine
from sim.engine.loading import LoadingKV, prefill_ns
from sim.engine.view import Scheduler
from sim.engine.waiting import SortedQueue
from sim.errors import PolicyError, ScenarioError
from sim.fleet.fetches import Fetches
from sim.fleet.gateway import Gateway
from sim.fleet.handover import Handovers, TransferConfig
from sim.fleet.operations import Operations, Replica
from sim.fleet.routing import Replicas, RoutedEngines
from sim.fleet.service import ServiceConfig, ServiceLog
from sim.fleet.source import Source
from sim.kv.eviction import PLAIN_CACHE, CacheConfig
from sim.kv.layout import PLAIN
from sim.kv.pool import KVCache
from sim.kv.tiers import SharedTiers, Tiers, shared_tiers
from sim.network import Network
from sim.protocols import Router, RoutingContext, StepCost
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request, Status
from sim.request_table import RequestTable
from sim.step_log import StepLog

_COLLECT_AFTER = (50_000, 20, 100)
"""Threshold for `gc.set_threshold`: with Python's own, a quarter of a large fleet's time goes to
it."""

Role = Literal["mixed", "prefill", "decode"]
"""What a pool's engines do with a request: all of it, its prompt, or what comes after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A pool of equal engines."""

    engine: EngineConfig
    cost: StepCost
    make_scheduler: Callable[[], Scheduler]
    """Makes a fresh scheduler for each engine."""
    make_router: Callable[[RoutingContext], Router]
    """Makes the router of all engines that take arrivals, or of all that decode; the first such
    pool's counts."""
    replicas: int = 1
    start_ns: int = 0
    """Time from the start of an engine's process until it serves: its weights are loaded."""
    provision_ns: int = 0
    """Time from asking for one more machine until it is there."""
    name: str = ""
    role: Role = "mixed"
    cache: CacheConfig = PLAIN_CACHE
    """How each engine's prefix cache finds and drops content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Pools of engines. Replicas are numbered consecutively over the pools."""

    pools: tuple[PoolConfig, ...]
    transfer: TransferConfig | None = None
    """How KV moves between prefill and decode pools; None: there are none."""
    service: ServiceConfig | None = None
    """Admission, clients' patience, faults and scaling; None: all off."""

    def check_roles(self) -> None:
        """Raise `ScenarioError` if there are prefill pools without decode pools, or the reverse."""
        roles = {pool.role for pool in self.pools}
        if ("prefill" in roles) != ("decode" in roles):
            raise ScenarioError("prefill pools need a decode pool, decode pools a prefill pool")
        if "prefill" in roles and ("mixed" in roles or self.transfer is None):
            raise ScenarioError(
                "a fleet is of mixed pools, or of prefill and decode pools with a KV transfer"
            )

    @property
    def pool_of(self) -> list[PoolConfig]:
        """Return the pool of each replica."""
        return [pool for pool in self.pools for _ in range(pool.replicas)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """All that a simulation leaves behind; metrics and ledgers are functions of it."""

    table: RequestTable
    requests: RequestLog
    steps: list[StepLog]
    """One step log per replica."""
    fleet: Fleet
    end_ns: int
    """When the simulation stopped: at the last event, or at the horizon."""
    num_events: int
    """Number of SimPy events processed."""
    link_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes that crossed each link between engines."""
    service: ServiceLog | None = None
    """What happened around the engines, if the fleet has a service configuration."""
    tiers: dict[int, Tiers] = field(default_factory=dict)
    """Tiers below the device memory of each replica."""

    @property
    def pool(self) -> PoolConfig:
        """The first pool: the only one, or the one that takes the arrivals."""
        return self.fleet.pools[0]


def run_cluster(
    table: RequestTable,
    fleet: Fleet | PoolConfig,
    *,
    until_ns: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RunLog:
    """Simulate the table on a fleet (or one pool) until all requests have left, or until the
    horizon.

    ``progress`` is called now and then with the number of requests sent. Raises PolicyError if a
    policy breaks its contract, and ScenarioError if a pool cannot be built.
    """
    if isinstance(fleet, PoolConfig):
        fleet = Fleet(pools=(fleet,))
    fleet.check_roles()
    env = Clock(initial_time=0)
    log = RequestLog(len(table))
    engines: list[Engine] = []
    entry: list[Engine] = []
    service = None if fleet.service is None else ServiceLog()
    submit: Callable[[Engine, Request], None] = Engine.submit

    def send(request: Request) -> None:
        choice = router.choose(request)
        if not 0 <= choice < len(entry):
            raise PolicyError(f"the router chose replica {choice} of {len(entry)}")
        submit(entry[choice], request)

    gateway = None
    if fleet.service is not None and service is not None:
        gateway = Gateway(env, table, log, service, fleet.service)
    arrivals = Source(env, table, send if gateway is None else gateway.send, progress)
    on_leave = arrivals.left if gateway is None else gateway.left
    for pool in fleet.pools:
        if pool.role == "decode" and log.decode is None:
            log.decode = DecodeLog(log)
        of_engine = log.decode if pool.role == "decode" else log
        assert of_engine is not None
        shared = shared_tiers(pool.cache.tiers)
        for _ in range(pool.replicas):
            engines.append(_engine(env, pool, table, of_engine, len(engines), on_leave, shared))
    decoding: list[Engine] = []
    for engine, pool in zip(engines, fleet.pool_of, strict=True):
        (decoding if pool.role == "decode" else entry).append(engine)
    in_service = gateway is not None
    first = fleet.pool_of[entry[0].replica]
    own = _make_router(entry, first, env, table, fleet.transfer)
    router = _route(entry, own, first, env, grouped=in_service)
    network, handovers = Network(env), None
    groups = [router]
    if fleet.transfer is not None and log.decode is not None:
        of_decode = fleet.pool_of[decoding[0].replica]
        of_others = _make_router(decoding, of_decode, env, table)
        groups.append(_route(decoding, of_others, of_decode, env, grouped=in_service))
        handovers = Handovers(env, fleet.transfer, network, log.decode, groups[-1], decoding)
        handovers.connect(entry)
        source = getattr(own, "source", None)
        if source is not None:
            submit = Fetches(env, fleet.transfer, network, log, entry, source).submit
    if gateway is not None and fleet.service is not None and service is not None:
        replicas = _replicas(fleet, groups)
        operations = Operations(env, fleet.service, service, replicas, network, gateway)
        assert isinstance(router, RoutedEngines)
        if len(groups) > 1:
            assert isinstance(groups[1], RoutedEngines)
            router.decode = groups[1]
        gateway.connect(fleet.service, router, handovers, submit, arrivals.left, operations.stop)
        operations.start()
    env.process(arrivals.run())
    with _few_collections():
        env.run(until=until_ns)
    for engine in engines:
        engine.close()
    log.drop_forgotten()
    if log.decode is not None:
        log.decode.drop_forgotten()
    status = np.frombuffer(log.status, np.int8)
    status[status < Status.FINISHED] = Status.UNFINISHED
    return RunLog(
        table=table,
        requests=log,
        steps=[engine.steps for engine in engines],
        fleet=fleet,
        end_ns=env.last_ns if until_ns is None else int(env.now),
        num_events=env.num_events,
        link_bytes=network.moved_bytes,
        service=service,
        tiers={e.replica: tiers for e in engines if (tiers := e.view.kv.tiers) is not None},
    )


@contextmanager
def _few_collections() -> Iterator[None]:
    """Run the garbage collector rarely: a run makes millions of objects and almost no cycles."""
    before = gc.get_threshold()
    if gc.isenabled():
        gc.set_threshold(*(max(pair) for pair in zip(before, _COLLECT_AFTER, strict=True)))
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _engine(
    env: Clock,
    pool: PoolConfig,
    table: RequestTable,
    log: RequestLog | DecodeLog,
    replica: int,
    on_leave: Callable[[Request], None],
    shared: SharedTiers,
) -> Engine:
    if pool.cache.tiers is not None and pool.engine.kv_layout != PLAIN:
        raise ScenarioError(
            "tiers below device memory hold blocks of layers whose state grows with every token; "
            "this model has windows, recurrent states or budgets beside them"
        )
    kv = KVCache(
        pool.engine.num_gpu_blocks,
        pool.engine.block_size,
        prefix_caching=pool.engine.enable_prefix_caching,
        chains=table.chains,
        layout=pool.engine.kv_layout,
        num_host_blocks=pool.engine.num_cpu_blocks,
        cache=pool.cache,
        clock=lambda: int(env.now),
    )
    scheduler, waiting = _scheduler(pool)
    tiers = None
    if pool.cache.tiers is not None:
        tiers = Tiers(env, pool.cache.tiers, kv.index, shared)
    engine = Engine(
        env,
        pool.engine,
        pool.cost,
        scheduler,
        kv,
        log,
        waiting=waiting,
        replica=replica,
        on_leave=on_leave,
        features=[] if tiers is None else [LoadingKV(env, tiers, log)],
    )
    if tiers is not None:
        tiers.prefill_ns = lambda request, computed_tokens: prefill_ns(
            engine.cost, engine.view, request, computed_tokens
        )
    return engine


def _scheduler(pool: PoolConfig) -> tuple[Scheduler, SortedQueue | None]:
    """Return a fresh scheduler and the waiting queue it asks for."""
    scheduler = pool.make_scheduler()
    order = getattr(scheduler, "waiting_order", None)
    return scheduler, None if order is None else SortedQueue(order)


def _replicas(fleet: Fleet, groups: list[Router]) -> list[Replica]:
    """Return every engine with what is needed to start it anew."""
    found: dict[int, Replica] = {}
    for group in groups:
        assert isinstance(group, RoutedEngines)
        for position, engine in enumerate(group.engines):
            pool = fleet.pool_of[engine.replica]
            found[engine.replica] = Replica(
                engine=engine,
                group=group,
                position=position,
                cost=pool.cost,
                restart=partial(_restart, engine, pool),
                start_ns=pool.start_ns,
                provision_ns=pool.provision_ns,
            )
    return [found[index] for index in range(len(found))]


def _restart(engine: Engine, pool: PoolConfig) -> None:
    engine.restart(*_scheduler(pool))


def _make_router(
    engines: list[Engine],
    pool: PoolConfig,
    env: simpy.Environment,
    table: RequestTable,
    transfer: TransferConfig | None = None,
) -> Router:
    """Make a router among these engines; with ``transfer`` they may fetch prefixes from each
    other."""
    return pool.make_router(Replicas(env, engines, table, pool.engine.seed, transfer))


def _route(
    engines: list[Engine],
    router: Router,
    pool: PoolConfig,
    env: simpy.Environment,
    *,
    grouped: bool = False,
) -> Router:
    """Connect the router to these engines' loads, if there is a choice between them.

    ``grouped``: together with the observers of their group (`RoutedEngines`).
    """
    if grouped:
        router = RoutedEngines(env, engines, router, pool.engine.seed)
    if grouped or len(engines) > 1:
        for position, engine in enumerate(engines):
            engine.lifecycle.on_load = partial(router.publish, position)
    return router
