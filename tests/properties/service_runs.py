"""Strategies for fleets with admission, impatient clients, faults and scaling."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import hypothesis.strategies as st

from policies import ADMISSIONS, AUTOSCALERS, ROUTERS, SCHEDULERS
from scenarios.build.plugins import load_attribute
from sim.clock import FOREVER_NS
from sim.engine.config import EngineConfig
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet, Role
from sim.fleet.handover import TransferConfig
from sim.fleet.service import (
    AdmitAll,
    ClientConfig,
    Fault,
    FaultConfig,
    Kind,
    ScalingConfig,
    ServiceConfig,
)
from sim.request_table import RequestTable
from tests.properties.costs import AffineCost
from tests.properties.engines import small_pool

MS = 1_000_000


def policy(table: dict[str, str], name: str, **options: Any) -> Any:
    """A policy's factory with its options."""
    return partial(load_attribute(table[name]), **options)


def serve(
    table: RequestTable,
    engine: EngineConfig,
    service: ServiceConfig,
    *,
    until_ns: int | None = None,
    **options: Any,
) -> RunLog:
    """Run a table on one pool with a service around it."""
    fleet = Fleet(pools=(small_pool(engine, **options),), service=service)
    return run_cluster(table, fleet, until_ns=until_ns)


TIMES = st.integers(0, 800).map(lambda ms: ms * MS)


@st.composite
def faults(draw: st.DrawFn, replicas: int, links: bool) -> Fault:
    """Any fault that a fleet of so many replicas can have."""
    kinds: list[Kind] = ["engine_crash", "engine_crash", "gpu_lost", "slow_node"]
    if links:
        kinds += ["link_slow", "link_cut"]
    kind = draw(st.sampled_from(kinds))
    of_core = kind.startswith("link") and draw(st.booleans())
    factor = {"slow_node": [1.0, 1.3, 4.0], "link_slow": [0.1, 0.5]}.get(kind, [1.0])
    return Fault(
        at_ns=draw(TIMES),
        kind=kind,
        replica=None if of_core else draw(st.integers(0, replicas - 1)),
        link="core" if of_core else None,
        factor=draw(st.sampled_from(factor)),
        duration_ns=draw(st.integers(1, 400)) * MS,
    )


CLIENTS = st.builds(
    ClientConfig,
    ttft_timeout_ns=st.sampled_from([FOREVER_NS, 20 * MS, 150 * MS]),
    e2e_timeout_ns=st.sampled_from([FOREVER_NS, 150 * MS, 700 * MS]),
    max_retries=st.sampled_from([0, 1, 3]),
    backoff_ns=st.sampled_from([0, 10 * MS]),
    max_backoff_ns=st.just(40 * MS),
    retry_budget=st.just(0.2),
    budget_burst=st.sampled_from([0, 2, math.inf]),
    server_notices=st.booleans(),
)
ADMISSION = st.sampled_from(
    [
        AdmitAll,
        policy(ADMISSIONS, "concurrency_cap", max_requests=3),
        policy(ADMISSIONS, "queue_cap", max_waiting=2),
        policy(ADMISSIONS, "rate_limit", rate_per_s=30.0, burst=2.0, per_tenant=True),
        policy(ADMISSIONS, "token_budget", max_prefill_tokens=300, max_kv_share=0.8),
        policy(ADMISSIONS, "early_rejection", ttft_s=0.05),
    ]
)
SCALERS = st.sampled_from(
    [
        policy(AUTOSCALERS, "queue_threshold", max_waiting=1.0, cooldown_s=0.05),
        policy(AUTOSCALERS, "kv_threshold", max_kv_use=0.3, min_kv_use=0.2, cooldown_s=0.05),
        policy(AUTOSCALERS, "ttft_target", ttft_s=0.03, window_s=0.1, cooldown_s=0.05),
    ]
)
TRANSFERS = st.builds(
    TransferConfig,
    bytes_per_token=st.sampled_from([0, 300_000]),
    fixed_bytes=st.sampled_from([0, 1_000_000]),
    layers=st.sampled_from([1, 8]),
    latency_ns=st.sampled_from([0, 20_000]),
    mode=st.sampled_from(["pull", "push"]),
    prefill_nic_bytes_per_s=st.sampled_from([10**9, 20 * 10**9]),
    decode_nic_bytes_per_s=st.sampled_from([10**9, 7 * 10**9]),
    core_bytes_per_s=st.just(2 * 10**9),
)


@st.composite
def services(draw: st.DrawFn, replicas: int, links: bool) -> ServiceConfig:
    """Anything around a fleet."""
    scheduled = draw(st.lists(faults(replicas, links), max_size=4))
    scaling = None
    if draw(st.booleans()):
        scaling = ScalingConfig(
            make=draw(SCALERS), interval_ns=draw(st.sampled_from([30, 97])) * MS
        )
    return ServiceConfig(
        admission=draw(ADMISSION),
        clients=draw(CLIENTS),
        faults=FaultConfig(
            schedule=tuple(scheduled),
            mtbf_ns=draw(st.sampled_from([FOREVER_NS, 200 * MS])),
            detection_ns=draw(st.sampled_from([0, 7 * MS, 60 * MS])),
            proxy_retries=draw(st.integers(0, 2)),
        ),
        scaling=scaling,
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def fleets(
    draw: st.DrawFn,
    engines: st.SearchStrategy[EngineConfig],
    schedulers: tuple[str, ...] = tuple(SCHEDULERS),
) -> Fleet:
    """Mixed pools, or prefill and decode, with a service around them."""
    roles: tuple[Role, ...] = draw(st.sampled_from([("mixed",), ("mixed",), ("prefill", "decode")]))
    sizes = [draw(st.integers(1, 3)) for _ in roles]
    router = draw(st.sampled_from(list(ROUTERS)))
    costs = st.sampled_from([AffineCost(), AffineCost(1e-4, launch_ns=400_000, host_ns=50_000)])
    cost = draw(costs)
    pools = tuple(
        small_pool(
            draw(engines),
            role=role,
            cost=cost,
            replicas=size,
            scheduler=draw(st.sampled_from(schedulers)),
            router=router,
            start_ns=draw(st.sampled_from([0, 30 * MS, 150 * MS])),
            provision_ns=draw(st.sampled_from([0, 100 * MS])),
        )
        for role, size in zip(roles, sizes, strict=True)
    )
    transfer = None if len(roles) == 1 else draw(TRANSFERS)
    service = draw(services(sum(sizes), transfer is not None))
    return Fleet(pools=pools, transfer=transfer, service=service)


def stepped(fleet: Fleet) -> Fleet:
    """Return the fleet without jumps."""
    pools = tuple(
        replace(pool, engine=replace(pool.engine, fast_forward=False)) for pool in fleet.pools
    )
    return replace(fleet, pools=pools)
