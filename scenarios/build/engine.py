"""The engine of a replica: its options as the simulation takes them, and what they exclude."""

from __future__ import annotations

from typing import Any

from costmodels.hardware.gpus import GIB
from costmodels.memory.paging import is_recurrent
from scenarios.build.replica import Replica
from sim.clock import to_ns
from sim.engine.config import ApiServerConfig, EngineConfig, why_no_beams
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig
from sim.kv.layout import PLAIN


def engine_config(replica: Replica) -> EngineConfig:
    """Return the engine's options; one engine stands for all data-parallel ranks and micro-batches.

    Raises `ScenarioError` for options that exclude each other.
    """
    options, speculation = replica.scenario.engine, replica.speculation
    blocks, ranks = replica.memory.blocks, replica.layout.data_parallel_size
    max_model_len = _max_model_len(replica)
    prefix_caching = replica.scenario.kv.enable_prefix_caching and not why_uncached(replica)
    if options.shared_prefix_attention != "none" and not prefix_caching:
        raise ScenarioError(
            f"engine.shared_prefix_attention {options.shared_prefix_attention} reads blocks that "
            "requests share, and without kv.enable_prefix_caching they share none"
        )
    micro_batches = ranks * replica.layout.pipeline_parallel_size
    return EngineConfig(
        step_token_limit=micro_batches * replica.max_num_batched_tokens,
        running_seq_limit=ranks * replica.max_num_seqs,
        replica_blocks=ranks * (blocks.num_gpu_blocks - 1) + 1,  # each rank has a null block
        max_model_len=max_model_len,
        block_size=blocks.block_size,
        kv_layout=blocks.layout,
        clip_tokens=replica.model.clips,
        long_prefill_token_threshold=_longest_chunk(replica),
        shared_prefix_attention=options.shared_prefix_attention,
        enable_prefix_caching=prefix_caching,
        async_scheduling=replica.async_scheduling
        and (speculation is None or speculation.async_scheduling),
        speculation=None if speculation is None else speculation.speculation,
        api_server=_api_server(replica),
        seed=replica.scenario.seed,
        **_swapping(replica),
    )


def _api_server(replica: Replica) -> ApiServerConfig | None:
    costs, count = replica.api_server, replica.scenario.engine.api_server_count
    if costs is None or count is None:
        return None
    return ApiServerConfig(
        request_ns=costs.request_s * 1e9,
        prompt_token_ns=costs.prompt_token_s * 1e9,
        part_ns=to_ns(costs.part_s),
        servers=count,
    )


def check_fit(replica: Replica) -> None:
    """Raise `ScenarioError` for a model that does not fit its devices, before any cost is
    compiled."""
    if replica.speculation is not None and replica.offload is not None:
        raise ScenarioError(
            "engine.speculative is not modelled with weights or state off the devices (offload, "
            "engine.cpu_offload_gb)"
        )
    _max_model_len(replica)


def check_beams(width: int, replica: Replica, pool: PoolConfig) -> None:
    """Raise `ScenarioError` if a pool uses something that is not modeled together with beam
    search."""
    reason = why_no_beams(pool.engine)
    if pool.role != "mixed":
        reason = "P/D disaggregation"
    elif replica.layout.data_parallel_size > 1:
        reason = "data_parallel_size above 1: whole requests are dealt out there"
    if reason is not None:
        raise ScenarioError(f"workload.beam_width {width} is not modelled with {reason}")
    if width > (most := pool.engine.running_seq_limit):
        raise ScenarioError(
            f"workload.beam_width {width} is above engine.max_num_seqs {most}: "
            "no step has room for a request"
        )


def why_uncached(replica: Replica) -> str | None:
    """Return why prefixes cannot be cached, though asked for; None if they can."""
    layout, recurrent = replica.memory.blocks.layout, is_recurrent(replica.model)
    if layout == PLAIN:
        return None
    if recurrent and replica.scenario.kv.mamba_cache_mode == "none":
        return (
            "recurrent layers need their state at the end of a cached prefix, which "
            "kv.mamba_cache_mode align keeps"
        )
    if layout.prompts:
        return "of a prompt only the tokens it chose itself are kept"
    return None if layout.grows else "every layer drops what leaves its window"


def pool_tokens(replica: Replica) -> int:
    """Return the tokens of the longest sequence that one rank's KV blocks hold."""
    blocks = replica.memory.blocks
    return blocks.layout.most_tokens(blocks.num_gpu_blocks - 1, blocks.block_size)


def _max_model_len(replica: Replica) -> int:
    asked, positions = replica.scenario.engine.max_model_len, replica.model.max_position_embeddings
    room = pool_tokens(replica)
    if asked is None:
        return min(positions, room)
    if asked > positions:
        raise ScenarioError(
            f"engine.max_model_len {asked:,} is beyond the {positions:,} positions of "
            f"{replica.model.name}; if its rope is scaled, give engine.max_position_embeddings"
        )
    if asked > room:
        raise ScenarioError(
            f"engine.max_model_len {asked:,} is more than the {room:,} tokens the KV pool holds; "
            "lower it, raise kv.gpu_memory_utilization or engine.tensor_parallel_size"
        )
    return asked


def _swapping(replica: Replica) -> dict[str, Any]:
    """Return the engine options of swap preemption; each GPU moves its own part of a block."""
    kv, gpu, ranks = replica.scenario.kv, replica.gpu, replica.layout.data_parallel_size
    if replica.scenario.engine.preemption_mode != "swap":
        return {}
    bandwidth = kv.swap_bytes_per_s or gpu.host_link_bytes_per_s
    if bandwidth is None:
        raise ScenarioError(f"the host link of {gpu.name} is not known: give kv.swap_bytes_per_s")
    block_bytes = replica.memory.blocks.block_bytes
    return {
        "preemption_mode": "swap",
        "num_cpu_blocks": ranks * (int(kv.swap_space_gib * GIB) // block_bytes),
        "swap_ns_per_block": block_bytes / bandwidth * 1e9 / ranks,
    }


def _longest_chunk(replica: Replica) -> int:
    """Return the most tokens of one prompt in a step; 0: no limit.

    A prompt stays on its data-parallel rank and has one chunk in each micro-batch.
    """
    asked, tokens = (
        replica.scenario.engine.long_prefill_token_threshold,
        replica.max_num_batched_tokens,
    )
    stages = replica.layout.pipeline_parallel_size
    if replica.layout.data_parallel_size == stages == 1:
        return asked
    return stages * min(asked or tokens, tokens)
