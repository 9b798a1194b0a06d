"""How a scenario lays a replica out over GPUs, and what the forecast assumes about the layout."""

from __future__ import annotations

from fractions import Fraction

from costmodels.hardware.gpus import GIB, GpuSpec
from costmodels.hardware.links import host_link, stage_link
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload
from costmodels.models.expert_load import ExpertLoad, trained_skew
from scenarios.schema import EngineOptions, Scenario
from sim.errors import ScenarioError


def layout_of(scenario: Scenario, gpu: GpuSpec) -> Layout:
    """Return the layout of one replica: how its ranks share the model."""
    options, hardware = scenario.engine, scenario.hardware
    return Layout(
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        data_parallel_size=options.data_parallel_size,
        prefill_context_parallel_size=options.prefill_context_parallel_size,
        prefill_context_parallel_mode=options.prefill_context_parallel_mode,
        decode_context_parallel_size=options.decode_context_parallel_size,
        enable_expert_parallel=options.enable_expert_parallel,
        enable_eplb=options.enable_eplb,
        num_redundant_experts=options.num_redundant_experts,
        all2all_backend=options.all2all_backend,
        enable_dbo=options.enable_dbo,
        dbo_decode_token_threshold=options.dbo_decode_token_threshold,
        dbo_prefill_token_threshold=options.dbo_prefill_token_threshold,
        enable_sp=options.enable_sp,
        expert_load=_expert_load(options),
        gpus_per_node=hardware.gpus_per_node or gpu.fabric_gpus,
        stage_link=stage_link(
            hardware.stage_link,
            latency_s=hardware.stage_link_latency_s,
            bytes_per_s=hardware.stage_link_bytes_per_s,
        ),
    )


def replica_gpus(scenario: Scenario) -> int:
    """Return the number of GPUs per replica."""
    options = scenario.engine
    group = options.tensor_parallel_size * options.prefill_context_parallel_size
    return group * options.pipeline_parallel_size * options.data_parallel_size


def layout_text(layout: Layout) -> str:
    """Return the sizes of a layout in short: ``TP 4, PP 2, DP 8 with experts whole on ranks``."""
    others = {
        "PCP": layout.prefill_context_parallel_size,
        "DCP": layout.decode_context_parallel_size,
        "PP": layout.pipeline_parallel_size,
        "DP": layout.data_parallel_size,
    }
    sizes = [f"{name} {size}" for name, size in others.items() if size > 1]
    text = ", ".join([f"TP {layout.tensor_parallel_size}", *sizes])
    return f"{text} with experts whole on ranks" if layout.enable_expert_parallel else text


def offload_of(scenario: Scenario, gpu: GpuSpec) -> Offload | None:
    """Return where weights and state are kept; None if everything is on the devices.

    Raises `ScenarioError`.
    """
    shares = scenario.offload
    host, disk = shares.weights_host_percent, shares.weights_disk_percent
    in_place = scenario.engine.cpu_offload_gb
    if not (host or disk or shares.kv_host_percent or in_place):
        return None
    if in_place and (host or disk):
        raise ScenarioError(
            "engine.cpu_offload_gb and offload.weights_*_percent both say where weights are"
            "; give one"
        )
    hardware = scenario.hardware
    host_gb = hardware.host_memory_gb
    return Offload(
        link=host_link(
            gpu,
            bytes_per_s=hardware.host_link_bytes_per_s,
            disk_read_bytes_per_s=hardware.disk_read_bytes_per_s,
        ),
        weights_host=_share(host),
        weights_disk=_share(disk),
        kv_host=_share(shares.kv_host_percent),
        cpu_offload_bytes=int(in_place * GIB),
        host_bytes=None if host_gb is None else int(host_gb * GIB),
    )


def _share(percent: float) -> Fraction:
    return Fraction(str(percent)) / 100


def _expert_load(options: EngineOptions) -> ExpertLoad:
    """Return how popular experts are; where whole experts are on ranks, a trained model's if
    nothing is said."""
    skew = options.expert_skew
    if skew is None:
        skew = float(str(trained_skew()["value"])) if options.enable_expert_parallel else 0.0
    return ExpertLoad(skew=skew, loads=options.expert_loads or ())
