"""Small fleets that prefill on one engine and decode on another."""

from __future__ import annotations

from typing import Any

from policies import ROUTERS, SCHEDULERS
from scenarios.build.plugins import load_attribute, scheduler_factory
from sim.engine.config import EngineConfig
from sim.fleet.cluster import Fleet, PoolConfig, Role
from sim.fleet.handover import TransferConfig
from tests.properties.costs import AffineCost

GB = 10**9


TRANSFER = TransferConfig(
    bytes_per_token=100_000,
    layers=8,
    latency_ns=20_000,
    prefill_nic_bytes_per_s=GB,
    decode_nic_bytes_per_s=GB,
)


def pool(
    role: Role,
    engine: EngineConfig,
    *,
    cost: AffineCost | None = None,
    replicas: int = 1,
    scheduler: str = "fcfs",
    router: str = "round_robin",
) -> PoolConfig:
    return PoolConfig(
        engine=engine,
        cost=AffineCost() if cost is None else cost,
        make_scheduler=scheduler_factory(scheduler, SCHEDULERS),
        make_router=load_attribute(ROUTERS[router]),
        replicas=replicas,
        name=role,
        role=role,
    )


def fleet(engine: EngineConfig, transfer: TransferConfig = TRANSFER, **options: Any) -> Fleet:
    """One pool of each role, alike."""
    pools = (pool("prefill", engine, **options), pool("decode", engine, **options))
    return Fleet(pools=pools, transfer=transfer)
