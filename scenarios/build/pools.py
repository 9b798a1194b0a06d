"""The pools of a scenario, each as a scenario of its own, and the KV transfer between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scenarios.schema import KvOptions, PoolSpec, Scenario
from sim.errors import ScenarioError
from sim.fleet.config import Role
from sim.fleet.handover import TransferConfig

if TYPE_CHECKING:
    from scenarios.build.built import Build

_SECTIONS = ("hardware", "engine", "kv")


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


def transfer_config(scenario: Scenario, parts: tuple[Build, ...]) -> TransferConfig | None:
    """Return how KV moves from the prefill to the decode pools; None if nothing is handed over.

    Raises `ScenarioError` if a network is not known, or if pools keep KV in different formats.
    """
    by_role = {role: [p for p in parts if p.pool.role == role] for role in ("prefill", "decode")}
    if not by_role["prefill"] or not by_role["decode"]:
        return None
    options = scenario.kv_transfer
    sizes = {
        (
            p.model_with_drafter.kv_bytes_per_token,
            p.model_with_drafter.fixed_state_bytes_per_sequence,
        )
        for role in by_role.values()
        for p in role
    }
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
        layers=by_role["prefill"][0].model_with_drafter.num_layers,
        latency_ns=round(options.latency_s * 1e9),
        mode=options.mode,
        prefill_nic_bytes_per_s=nics["prefill"],
        decode_nic_bytes_per_s=nics["decode"],
        core_bytes_per_s=options.core_bytes_per_s,
    )


def pool_notes(scenario: Scenario, transfer: TransferConfig | None) -> tuple[str, ...]:
    """Return notes on what a forecast of several pools assumes."""
    if transfer is None:
        return ()
    how = "pushed layer by layer" if transfer.mode == "push" else "fetched after the prefill"
    return (
        f"KV is {how}, {transfer.bytes_per_token:,} B a token, at up to "
        f"{transfer.prefill_nic_bytes_per_s / 1e9:.3g} GB/s out of a prefill and "
        f"{transfer.decode_nic_bytes_per_s / 1e9:.3g} GB/s into a decode engine; the first token "
        "comes from the prefill engine",
    )
