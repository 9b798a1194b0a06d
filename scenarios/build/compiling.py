"""Kernels that a fresh replica compiles while it serves, as a scenario's start-up asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from costmodels.engines.compile_stalls import CompileStalls, compile_stalls
from costmodels.layouts.shard import shard
from scenarios.build.host import host_factor
from scenarios.build.replica import Replica
from sim.accounts import LAUNCH_AND_HOST
from sim.clock import to_ns
from sim.engine.compiling import CompileConfig, Compiling
from sim.engine.view import Feature
from sim.errors import ScenarioError
from sim.fleet.cluster import RunLog
from sim.request_table import RequestTable


def features(replica: Replica) -> list[Callable[[RequestTable], Feature]]:
    """Return what makes an engine compile; empty if it has all kernels, or needs none.

    Raises `ScenarioError` for a layout in which it is not modeled.
    """
    stalls = _stalls(replica)
    if stalls is None:
        return []
    stall_s = stalls.load_s if _is_on_disk(replica) else stalls.stall_s
    config = CompileConfig(
        graph_tokens=_graph_tokens(replica),
        bucket_tokens=stalls.bucket_tokens,
        compile_ns=to_ns(stall_s * host_factor(replica.scenario.engine)),
        is_kept=replica.scenario.startup.kernel_cache == "kept",
    )
    return [lambda table: Compiling(config)]


def notes(replica: Replica) -> list[str]:
    """Return what a fresh replica compiles, in words; empty where every kernel is there."""
    if replica.scenario.startup.kernel_cache == "full":
        return []
    stalls = _stalls(replica)
    if stalls is None:
        return [
            f"startup.kernel_cache: no kernel of {replica.model.name} in {replica.profile.name} is "
            "known to be compiled while the engine serves"
        ]
    width, most = stalls.bucket_tokens, replica.max_num_batched_tokens
    buckets = max(-(-most // width) - _graph_tokens(replica) // width, 0)
    does, stall_s, label = "compiles", stalls.stall_s, stalls.evidence.label
    if _is_on_disk(replica):
        does, stall_s, label = "loads from disk", stalls.load_s, stalls.load_evidence.label
    return [
        f"a fresh replica {does} the {stalls.what}: {stall_s:.2g} s "
        f"({label}) at the first step of each {width} tokens beyond the CUDA "
        f"graphs, {buckets:,} times until all are there"
    ]


def _is_on_disk(replica: Replica) -> bool:
    return replica.scenario.startup.kernel_cache == "disk"


def _stalls(replica: Replica) -> CompileStalls | None:
    if replica.scenario.startup.kernel_cache == "full":
        return None
    layout = replica.layout
    found = compile_stalls(shard(replica.model, layout), replica.gpu, replica.profile)
    if found is not None and layout.gpus > layout.tensor_parallel_size:
        raise ScenarioError(
            "startup.kernel_cache is modelled with tensor parallelism only: ranks and stages with "
            "steps of their own meet sizes at different times; use pool.replicas, or full"
        )
    return found


def _graph_tokens(replica: Replica) -> int:
    speculation = replica.speculation
    drafts = 0 if speculation is None else speculation.speculation.most_drafts
    return replica.cost.largest_graph(drafts)


def facts(log: RunLog) -> dict[str, Any] | None:
    """Return how often engines compiled in a run, for the summary; None if they never did."""
    stalls_ns = [ns for steps in log.steps for _, _, ns in steps.waits.get(LAUNCH_AND_HOST, [])]
    if not stalls_ns:
        return None
    return {
        "title": "Kernels compiled while serving",
        "facts": [
            {"name": "compiled", "value": f"{len(stalls_ns):,}"},
            {"name": "time engines stood still", "value": f"{sum(stalls_ns) / 1e9:.3g} s"},
        ],
    }
