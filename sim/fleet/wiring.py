"""How the parts of one simulation are made and connected.

Requests go from the source to an engine at once, or pass a gateway if the fleet has a service.
Engines that prefill hand them over to engines that decode, which have a router of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sim.clock import Clock
from sim.engine.engine import Engine
from sim.engine.loading import LoadingKV, prefill_ns
from sim.engine.view import Scheduler
from sim.engine.waiting import FifoQueue, SortedQueue, WaitingQueue
from sim.errors import PolicyError, ScenarioError
from sim.fleet.config import Fleet, PoolConfig
from sim.fleet.fetches import Fetches
from sim.fleet.gateway import Gateway, MixedEngines, PrefillAndDecodeEngines, Residences
from sim.fleet.handover import Handovers
from sim.fleet.operations import Operations, Replica
from sim.fleet.routing import Replicas, RoutedEngines
from sim.fleet.service import ServiceConfig, ServiceLog
from sim.fleet.source import RequestMaker, Source
from sim.kv.layout import PLAIN
from sim.kv.pool import KVCache
from sim.kv.prefix_index import PrefixIndex
from sim.kv.tiers import Tiers, shared_tiers
from sim.network import Network
from sim.protocols import Router
from sim.recorder import RequestLog
from sim.request import Request
from sim.request_table import RequestTable

Submit = Callable[[Engine, Request], None]
"""Gives a request to the engine that the router chose."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """The parts of one simulation."""

    env: Clock
    table: RequestTable
    fleet: Fleet
    source: Source
    network: Network
    requests: RequestLog
    service: ServiceLog = field(default_factory=ServiceLog)
    engines: list[Engine] = field(default_factory=list)
    """By replica."""


class _Group(NamedTuple):
    """The engines that take arrivals, or those that decode, and the policy that chooses one."""

    engines: list[Engine]
    router: Router


def wire(env: Clock, table: RequestTable, fleet: Fleet, progress: Callable[[int], None]) -> Cluster:
    """Make and connect all parts of a simulation, whose source has yet to be started.

    Raises ScenarioError if a pool cannot be built, and PolicyError for a policy that cannot be.
    """
    requests = RequestMaker(table)
    cluster = Cluster(
        env=env,
        table=table,
        fleet=fleet,
        source=Source(env, table, requests, progress),
        network=Network(env),
        requests=RequestLog(len(table)),
    )
    if fleet.service is None:
        _send_to_engines(cluster)
    else:
        _send_through_gateway(cluster, fleet.service, requests)
    return cluster


def _send_to_engines(cluster: Cluster) -> None:
    """Let requests go from the source to engines at once."""
    _add_engines(cluster, cluster.source.left)
    entry, *decoding = groups = _groups(cluster)
    for group in groups:
        if len(group.engines) > 1:  # otherwise there is no choice
            _publish_loads(group.engines, group.router)
    submit: Submit = Engine.submit
    for group in decoding:
        _, submit = _hand_over(cluster, entry, group, group.router)

    def send(request: Request) -> None:
        choice = entry.router.choose(request)
        if not 0 <= choice < len(entry.engines):
            raise PolicyError(f"the router chose replica {choice} of {len(entry.engines)}")
        submit(entry.engines[choice], request)

    cluster.source.send = send
    cluster.service.lives += [[engine.replica, 0, -1] for engine in cluster.engines]


def _send_through_gateway(cluster: Cluster, service: ServiceConfig, requests: RequestMaker) -> None:
    """Let requests pass a gateway before engines, which may fail, come and go."""
    env, network = cluster.env, cluster.network
    gateway = Gateway(env, requests, cluster.requests, cluster.service, service)
    _add_engines(cluster, gateway.left)
    groups = _groups(cluster)
    entry, *decoding = routed = [_routed(cluster, group) for group in groups]
    residences: Residences = MixedEngines()
    submit: Submit = Engine.submit
    for group, decode in zip(groups[1:], decoding, strict=True):
        entry.decode = decode
        handovers, submit = _hand_over(cluster, groups[0], group, decode)
        handovers.on_fail = gateway.fail_handover
        residences = PrefillAndDecodeEngines(handovers)
    replicas = _replicas(cluster.fleet, routed)
    operations = Operations(env, service, cluster.service, replicas, network, gateway)
    gateway.connect(entry, residences, submit, cluster.source.left, operations.stop)
    operations.start()
    cluster.source.send = gateway.send


# Engines.


def _add_engines(cluster: Cluster, on_leave: Callable[[Request], None]) -> None:
    """Make the engines of all pools."""
    for pool in cluster.fleet.pools:
        log = cluster.requests.decodes() if pool.role == "decode" else cluster.requests
        make_tiers = _tiers_of(cluster.env, pool)
        for _ in range(pool.replicas):
            kv = _kv_cache(cluster, pool)
            scheduler, waiting = _scheduler(pool)
            engine = Engine(
                cluster.env,
                pool.engine,
                pool.cost,
                scheduler,
                kv,
                log,
                waiting=waiting,
                replica=len(cluster.engines),
                on_leave=on_leave,
            )
            for tiers in make_tiers(kv.index):
                engine.add(LoadingKV(cluster.env, tiers, log))
                tiers.prefill_ns = partial(_prefill_ns, engine)
            for make_feature in pool.make_features:
                engine.add(make_feature(cluster.table))
            cluster.engines.append(engine)


def _prefill_ns(engine: Engine, request: Request, computed_tokens: int) -> int:
    return prefill_ns(engine.cost, engine.view, request, computed_tokens)


def _kv_cache(cluster: Cluster, pool: PoolConfig) -> KVCache:
    env = cluster.env
    return KVCache(
        pool.engine.replica_blocks,
        pool.engine.block_size,
        prefix_caching=pool.engine.enable_prefix_caching,
        chains=cluster.table.chains,
        layout=pool.engine.kv_layout,
        num_host_blocks=pool.engine.num_cpu_blocks,
        cache=pool.cache,
        clock=lambda: int(env.now),
    )


def _tiers_of(env: Clock, pool: PoolConfig) -> Callable[[PrefixIndex], list[Tiers]]:
    """Return what makes the tiers below one engine's device memory, if it has any; a pool shares
    some of them."""
    config = pool.cache.tiers
    if config is None:
        return lambda index: []
    if pool.engine.kv_layout != PLAIN:
        raise ScenarioError(
            "tiers below device memory hold blocks of layers whose state grows with every token; "
            "this model has windows, recurrent states or budgets beside them"
        )
    shared = shared_tiers(config)
    return lambda index: [Tiers(env, config, index, shared)]


def _scheduler(pool: PoolConfig) -> tuple[Scheduler, WaitingQueue]:
    """Return a fresh scheduler and the waiting queue it asks for."""
    scheduler = pool.make_scheduler()
    order = getattr(scheduler, "waiting_order", None)
    return scheduler, FifoQueue() if order is None else SortedQueue(order)


# Routers.


def _groups(cluster: Cluster) -> list[_Group]:
    """Return the engines that take arrivals, then those that decode for them, if any."""
    pool_of, transfer = cluster.fleet.pool_of, cluster.fleet.transfer
    entry = [e for e in cluster.engines if pool_of[e.replica].role != "decode"]
    decoding = [e for e in cluster.engines if pool_of[e.replica].role == "decode"]
    found = []
    for engines, fetches in ((entry, transfer), (decoding, None)):
        if engines:
            pool = pool_of[engines[0].replica]
            context = Replicas(cluster.env, engines, cluster.table, pool.engine.seed, fetches)
            found.append(_Group(engines, pool.make_router(context)))
    return found


def _publish_loads(engines: list[Engine], router: Router) -> None:
    """Tell a router of every change of its engines' loads."""
    for position, engine in enumerate(engines):
        engine.lifecycle.on_load = partial(router.publish, position)


def _routed(cluster: Cluster, group: _Group) -> RoutedEngines:
    """Put what policies may see of a group, and which of its engines are up, around its router."""
    seed = cluster.fleet.pool_of[group.engines[0].replica].engine.seed
    routed = RoutedEngines(cluster.env, group.engines, group.router, seed)
    _publish_loads(group.engines, routed)
    return routed


def _hand_over(
    cluster: Cluster, entry: _Group, decoding: _Group, router: Router
) -> tuple[Handovers, Submit]:
    """Connect engines that prefill with those that decode, which ``router`` chooses among.

    Also returns how requests are given to the first: if their own router knows a source, they
    fetch prefixes before.
    """
    env, network, transfer = cluster.env, cluster.network, cluster.fleet.transfer
    assert transfer is not None, "checked by Fleet.check_roles"
    log = cluster.requests
    handovers = Handovers(env, transfer, network, log.decodes(), router, decoding.engines)
    handovers.connect(entry.engines)
    source = getattr(entry.router, "source", None)
    if source is None:
        return handovers, Engine.submit
    return handovers, Fetches(env, transfer, network, log, entry.engines, source).submit


def _replicas(fleet: Fleet, groups: list[RoutedEngines]) -> list[Replica]:
    """Return every engine with what is needed to start it anew, by replica."""
    found: list[Replica] = []
    for group in groups:
        for position, engine in enumerate(group.engines):
            pool = fleet.pool_of[engine.replica]
            found.append(
                Replica(
                    engine=engine,
                    group=group,
                    position=position,
                    cost=pool.cost,
                    restart=partial(_restart, engine, pool),
                    start_ns=pool.start_ns,
                    provision_ns=pool.provision_ns,
                )
            )
    return sorted(found, key=lambda replica: replica.engine.replica)


def _restart(engine: Engine, pool: PoolConfig) -> None:
    engine.restart(*_scheduler(pool))
