"""Small fleets that prefill on one engine and decode on another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.engine.config import EngineConfig
from sim.fleet.config import Fleet, PoolConfig, Role
from sim.fleet.handover import TransferConfig
from tests.properties.engines import small_pool

GB = 10**9


TRANSFER = TransferConfig(
    bytes_per_token=100_000,
    layers=8,
    latency_ns=20_000,
    prefill_nic_bytes_per_s=GB,
    decode_nic_bytes_per_s=GB,
)


def pool(role: Role, engine: EngineConfig, **options: Any) -> PoolConfig:
    """Return a `small_pool` that is named by its role."""
    return replace(small_pool(engine, role=role, **options), name=role)


def fleet(engine: EngineConfig, transfer: TransferConfig = TRANSFER, **options: Any) -> Fleet:
    """One pool of each role, alike."""
    pools = (pool("prefill", engine, **options), pool("decode", engine, **options))
    return Fleet(pools=pools, transfer=transfer)
