"""The pools of a scenario: each as a scenario of its own, as built, and the KV transfer between
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodels.steps.cost import PoolCost
from scenarios.build.cache import Cache
from scenarios.build.replica import Replica
from scenarios.schema import KvOptions, PoolSpec, Scenario
from scenarios.schema.fleet import Prices
from sim.errors import ScenarioError
from sim.fleet.config import Fleet, PoolConfig, Role
from sim.fleet.handover import TransferConfig
from sim.fleet.service import ServiceConfig

_SECTIONS = ("hardware", "engine", "kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuild:
    """One pool, ready to be simulated."""

    replica: Replica
    pool: PoolConfig
    cache: Cache
    """The prefix cache of each engine."""
    notes: tuple[str, ...]
    """Decisions made for the user, in plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Everything that a scenario is made of except its workload, ready to run."""

    parts: tuple[PoolBuild, ...]
    """All pools, in the order of replica numbers."""
    notes: tuple[str, ...]
    """Decisions made for the user and assumptions, of all pools and the fleet, in plain words."""
    transfer: TransferConfig | None = None
    service: ServiceConfig | None = None
    """Admission, clients, faults and scaling, which apply to all pools."""
    prices: Prices | None = None

    @property
    def replica(self) -> Replica:
        """A replica of the first pool."""
        return self.parts[0].replica

    @property
    def pool(self) -> PoolConfig:
        """The pool whose replicas come first."""
        return self.parts[0].pool

    @property
    def fleet(self) -> Fleet:
        """All pools as one fleet, ready to be simulated."""
        return self._fleet(tuple(part.pool for part in self.parts))

    def with_costs(self, change: Callable[[PoolCost], PoolCost]) -> Fleet:
        """Return the fleet of the same pools with their step costs changed by ``change``."""
        pools = (replace(part.pool, cost=change(part.replica.cost)) for part in self.parts)
        return self._fleet(tuple(pools))

    def _fleet(self, pools: tuple[PoolConfig, ...]) -> Fleet:
        return Fleet(pools=pools, transfer=self.transfer, service=self.service)


def pool_scenarios(scenario: Scenario) -> list[tuple[str, Role, Scenario]]:
    """Return (name, role, scenario of that pool alone) per pool, in the order of replica numbers.

    Raises `ScenarioError` if two pools have one name.
    """
    if not scenario.pools:
        return [("", "mixed", scenario)]
    names = [spec.name for spec in scenario.pools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ScenarioError(f"pools: two are called {', '.join(twice)}; give each its own name")
    return [(spec.name, spec.role, _of_pool(scenario, spec)) for spec in scenario.pools]


def _of_pool(scenario: Scenario, spec: PoolSpec) -> Scenario:
    changed: dict[str, object] = {}
    for section in _SECTIONS:
        own = getattr(spec, section)
        if section == "kv" and own is not None:
            _check_kv(own, spec.name)
        if own is not None:
            given = {name: getattr(own, name) for name in own.model_fields_set}
            changed[section] = getattr(scenario, section).model_copy(update=given)
    router = scenario.pool.router if spec.router is None else spec.router
    pool = scenario.pool.model_copy(update={"replicas": spec.replicas, "router": router})
    return scenario.model_copy(update={**changed, "pool": pool, "pools": ()})


def _check_kv(kv: KvOptions, name: str) -> None:
    if "share_across_tenants" in kv.model_fields_set:
        raise ScenarioError(
            f"pools: kv.share_across_tenants is of all pools, not of {name}: give it in the "
            "scenario's own kv section"
        )


def transfer_config(scenario: Scenario, parts: tuple[PoolBuild, ...]) -> TransferConfig | None:
    """Return how KV moves from the prefill to the decode pools; None if nothing is handed over.

    Raises `ScenarioError` if a network is not known, or if pools keep KV in different formats.
    """
    by_role = {
        role: [part.replica for part in parts if part.pool.role == role]
        for role in ("prefill", "decode")
    }
    if not by_role["prefill"] or not by_role["decode"]:
        return None
    options = scenario.kv_transfer
    models = [one.memory.rank.model for of_role in by_role.values() for one in of_role]
    sizes = {(one.kv_bytes_per_token, one.fixed_state_bytes_per_sequence) for one in models}
    if len(sizes) > 1:
        raise ScenarioError(
            "pools: prefill and decode pools keep KV of different sizes, "
            f"{', '.join(f'{a:,} B a token' for a, _ in sorted(sizes))}: give kv.cache_dtype, and "
            "engine.speculative where its drafter keeps KV, alike"
        )
    bytes_per_token, fixed_bytes = sizes.pop()
    nics = {}
    for role, of_role in by_role.items():
        a_gpu = {options.nic_bytes_per_s or p.gpu.network_bytes_per_s for p in of_role}
        if None in a_gpu:
            raise ScenarioError(
                f"the network of {of_role[0].gpu.name} is not known: "
                "give kv_transfer.nic_bytes_per_s"
            )
        nics[role] = min(
            (options.nic_bytes_per_s or p.gpu.network_bytes_per_s or 0.0) * p.layout.gpus
            for p in of_role
        )
    return TransferConfig(
        bytes_per_token=bytes_per_token,
        fixed_bytes=fixed_bytes,
        layers=models[0].num_layers,
        latency_ns=round(options.latency_s * 1e9),
        mode=options.mode,
        prefill_nic_bytes_per_s=nics["prefill"],
        decode_nic_bytes_per_s=nics["decode"],
        core_bytes_per_s=options.core_bytes_per_s,
    )
