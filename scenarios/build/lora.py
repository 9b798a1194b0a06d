"""LoRA adapters of a scenario: slots, kernels and loads of a replica, and who asks for which."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.links import host_link
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard, shard
from costmodels.memory.entries import WORKSPACE, MemoryEntry
from costmodels.models.spec import ModelSpec
from costmodels.operators.adapters import adapted_matrices, adapter_bytes
from costmodels.steps.adapters import adapter_kernels, copy_s
from scenarios.build.replica import Added
from scenarios.schema import Scenario
from sim.accounts import ADAPTERS
from sim.arrays import Int64
from sim.clock import to_ns
from sim.engine.adapters import BASE_MODEL, COLUMN, AdapterConfig, Adapters
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog
from sim.request_table import RequestTable
from workloads.chains import copy_chains

_STREAM = 0x10AA  # keeps these draws apart from others of the seed
_MIB = 1 << 20


def added(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, layout: Layout) -> Added | None:
    """Return what adapters add to a replica; None without them."""
    lora = scenario.lora
    if not lora.enabled:
        return None
    if layout.gpus > layout.tensor_parallel_size:
        raise ScenarioError(
            "lora is modelled with tensor parallelism only: set data_parallel_size, "
            "pipeline_parallel_size and the context-parallel sizes to 1, or use pool.replicas"
        )
    rank = shard(model, layout)
    slots = lora.max_loras * adapter_bytes(rank, lora.max_lora_rank)
    config = _config(scenario, rank, gpu)
    what = f"LoRA slots: {lora.max_loras} of rank {lora.max_lora_rank}"
    return Added(
        name="lora",
        memory=(MemoryEntry(WORKSPACE, what, model.dtype, slots),),
        terms=(adapter_kernels(rank, gpu, lora.max_lora_rank),),
        in_engine=partial(_in_engine, config),
        notes=(
            f"an adapter is {adapter_bytes(rank, _own_rank(scenario)) / _MIB:,.0f} MiB on a GPU; "
            f"it is copied into a slot in {config.copy_ns / 1e6:.3g} ms, and read from disk in "
            f"{config.read_ns / 1e6:.3g} ms if host memory does not have it",
            *(["routed experts have no adapters here"] if model.num_moe_layers else []),
        ),
    )


def _own_rank(scenario: Scenario) -> int:
    return scenario.lora.rank or scenario.lora.max_lora_rank


def _config(scenario: Scenario, own: RankShard, gpu: GpuSpec) -> AdapterConfig:
    """Return the engine's limits, and how long an adapter takes to move.

    Each GPU copies its own part; every process reads the whole file.
    """
    lora, hardware, rank = scenario.lora, scenario.hardware, _own_rank(scenario)
    link = host_link(
        gpu,
        bytes_per_s=hardware.host_link_bytes_per_s,
        disk_read_bytes_per_s=hardware.disk_read_bytes_per_s,
    )
    pairs = sum(matrix.calls * matrix.parts for matrix in adapted_matrices(own))
    copied_s = adapter_bytes(own, rank) / link.to_device_bytes_per_s + 2 * pairs * copy_s()
    whole = adapter_bytes(shard(own.model, Layout()), rank)
    return AdapterConfig(
        num_adapters=lora.adapters,
        max_loras=lora.max_loras,
        max_cpu_loras=lora.max_cpu_loras or lora.max_loras,
        copy_ns=to_ns(copied_s),
        read_ns=to_ns(whole / link.disk_read_bytes_per_s),
    )


def _in_engine(config: AdapterConfig, table: RequestTable) -> Adapters:
    return Adapters(config, table.extras[COLUMN])


def with_columns(scenario: Scenario, table: RequestTable) -> RequestTable:
    """Return the workload with the adapter of each request.

    The requests of a session use the same. Adapters share no prefixes: keys and values depend on
    them.
    """
    if not scenario.lora.enabled:
        return table
    adapter = _drawn(scenario, table)
    chains = table.chains
    if chains is not None:
        chains = copy_chains(chains, np.arange(len(table)), adapter - BASE_MODEL)
    return replace(table, chains=chains, extras={**table.extras, COLUMN: adapter})


def _drawn(scenario: Scenario, table: RequestTable) -> Int64:
    """Draw an adapter for each request or session; the draws of the first do not depend on how
    many follow."""
    lora = scenario.lora
    owner = np.arange(len(table)) if table.session is None else table.session
    draws = np.random.default_rng((scenario.seed, 0x10A)).random(
        (int(owner.max(initial=-1)) + 1, 2)
    )
    weights = 1 / np.arange(1, lora.adapters + 1) ** lora.zipf
    chosen = np.searchsorted(weights.cumsum() / weights.sum(), draws[:, 0], side="right")
    chosen = np.minimum(chosen, lora.adapters - 1)
    found: Int64 = np.where(draws[:, 1] < lora.share, chosen, BASE_MODEL)[owner]
    return found.astype(np.int64)


def facts(log: RunLog) -> dict[str, Any] | None:
    """Return how often adapters were loaded, and how many a step had; None without them."""
    if COLUMN not in log.table.extras:
        return None
    loads, wait_ns, steps, adapters, most = 0, 0, 0, 0, 0
    for of_engine in log.steps:
        waits = of_engine.waits.get(ADAPTERS, [])
        loads += sum(moved for _, moved, _ in waits)
        wait_ns += sum(ns for _, _, ns in waits)
        each = of_engine.column("decode_adapters") + of_engine.column("prefill_adapters")
        repeats = of_engine.column("steps")
        steps, adapters = steps + int(repeats.sum()), adapters + int((each * repeats).sum())
        most = max(most, int(each.max(initial=0)))
    column = log.table.extras[COLUMN]
    used = column[column != BASE_MODEL]
    return {
        "title": "LoRA adapters",
        "facts": [
            {"name": "adapters asked for", "value": f"{len(np.unique(used)):,}"},
            {"name": "requests with one", "value": f"{len(used) / max(len(column), 1):.1%}"},
            {"name": "adapters per step, mean", "value": f"{adapters / max(steps, 1):.3g}"},
            {"name": "adapters per step, most", "value": f"{most:,}"},
            {"name": "loads into slots", "value": f"{loads:,}"},
            {"name": "time steps waited for loads", "value": f"{wait_ns / 1e9:.3g} s"},
        ],
    }
