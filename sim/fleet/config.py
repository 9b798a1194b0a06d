"""Pools of equal engines, and what they have in common: the options of one simulated fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sim.engine.config import EngineConfig
from sim.engine.view import Feature, Scheduler
from sim.errors import ScenarioError
from sim.fleet.handover import TransferConfig
from sim.fleet.service import ServiceConfig
from sim.kv.eviction import PLAIN_CACHE, CacheConfig
from sim.protocols import Router, RoutingContext, StepCost
from sim.request_table import RequestTable

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
    make_features: tuple[Callable[[RequestTable], Feature], ...] = ()
    """Each makes an optional feature of one engine (`sim.engine.hooks`) that serves a table."""


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
