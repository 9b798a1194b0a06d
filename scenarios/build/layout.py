"""How a scenario lays a replica out over GPUs, and what the forecast assumes about the layout."""

from __future__ import annotations

from fractions import Fraction

from costmodels.hardware.gpus import GIB, GpuSpec
from costmodels.hardware.links import host_link, stage_link
from costmodels.layouts.layout import Layout
from costmodels.memory.plan import DeviceMemory
from costmodels.memory.streaming import Offload
from costmodels.models.expert_load import ExpertLoad
from scenarios.schema import Scenario
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
        expert_load=ExpertLoad(skew=options.expert_skew, loads=options.expert_loads or ()),
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


def layout_notes(layout: Layout) -> tuple[str, ...]:
    """Return notes on what a forecast of this layout assumes, in plain words."""
    notes = []
    if layout.data_parallel_size > 1:
        notes.append(
            f"{layout.data_parallel_size} data-parallel ranks are one batch dealt out by whole "
            "sequences, and step together with the one that has most; their contexts are taken as "
            "equal, and a prefix cached by one is taken as cached by all"
        )
    if layout.pipeline_parallel_size > 1:
        notes.append(
            f"{layout.pipeline_parallel_size} pipeline stages work on as many micro-batches: a "
            "step is a round of all of them, as often the slowest stage as there are stages; "
            "layers of all kinds are taken as spread evenly over stages"
        )
    if layout.prefill_context_parallel_size > 1:
        how = "by an all-gather before attention"
        if layout.prefill_context_parallel_mode == "ring":
            how = "passed round a ring while attention computes"
        notes.append(
            f"the tokens of a prompt's chunk are split over {layout.prefill_context_parallel_size} "
            f"ranks, keys and values brought to all {how}; all of them compute every decode, and "
            "hold all weights, experts too"
        )
    if layout.decode_context_parallel_size > 1:
        notes.append(
            f"{layout.decode_context_parallel_size} ranks of a tensor-parallel group split each "
            "sequence's keys and values; queries are gathered and outputs merged in every layer"
        )
    link = layout.stage_link
    if link is not None:
        away = f", and {link.client_hops} to and from the client" if link.client_hops else ""
        notes.append(
            f"stages are joined by {link.name}: {link.latency_s * 1e3:g} ms one way and "
            f"{link.bytes_per_s / 1e6:,.4g} MB/s, {layout.pipeline_parallel_size - 1} hops between "
            f"them{away} in a step; it does not fail, and carries nothing else"
        )
    load = layout.expert_load
    if layout.enable_expert_parallel and not load.loads and not load.skew:
        notes.append(
            "experts are taken as equally popular: ranks differ by chance alone "
            "(engine.expert_skew, engine.expert_loads)"
        )
    return tuple(notes)


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


def offload_notes(scenario: Scenario, memory: DeviceMemory) -> tuple[str, ...]:
    """Return notes on what is off the device and what is assumed about it, in plain words."""
    notes = []
    host, disk = memory.host_weight_bytes, memory.disk_weight_bytes
    if scenario.engine.cpu_offload_gb and host < int(scenario.engine.cpu_offload_gb * GIB):
        notes.append(
            f"engine.cpu_offload_gb {scenario.engine.cpu_offload_gb:g} is more than the layers' "
            f"{host / GIB:.2f} GiB a GPU: all of them are in host memory"
        )
    for size, where in ((host, "in host memory"), (disk, "on disk")):
        if size:
            notes.append(f"{size / GIB:.2f} GiB of weights a GPU are {where}, streamed every step")
    if memory.host_kv_bytes:
        notes.append(
            f"up to {memory.host_kv_bytes / GIB:.2f} GiB of keys and values a GPU are in host "
            "memory, streamed every step"
        )
    if host and scenario.hardware.host_memory_gb is None:
        notes.append("the host is taken to have that memory (hardware.host_memory_gb checks it)")
    return tuple(notes)


def _share(percent: float) -> Fraction:
    return Fraction(str(percent)) / 100
