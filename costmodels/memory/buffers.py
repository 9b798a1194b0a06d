"""Device memory that exchanges between ranks hold from start to end, on each rank.

For NCCL's communicators only the size of a buffer is documented; their number is assumed here, and
the line says so. The other sizes are those that vLLM and DeepEP allocate.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.moe import Moe

_MIB = 1 << 20
_NCCL_BUFFER = 4 * _MIB
"""NCCL_BUFFSIZE: its documented default."""
_NCCL_BUFFERS = 2 * 24
"""Assumed: two per channel (from a ring's neighbor, from a tree's), 24 channels."""
_CUSTOM_ALL_REDUCE = 3 * 8 * _MIB
"""Signals and staging, inputs, addresses: 8 MiB each. Source: vLLM 0.25 ``CustomAllreduce``."""
_CUSTOM_ALL_REDUCE_RANKS = (2, 4, 6, 8)
_DEEPEP_FABRIC = 1024 * _MIB
"""VLLM_DEEPEP_BUFFER_SIZE_MB: for the fabric; in the throughput mode also for the network."""
_DEEPEP_TOKENS = 256
"""VLLM_MOE_DP_CHUNK_SIZE: most tokens per rank in one low-latency exchange."""
_SCALE_GROUP, _HEADER, _ALIGNMENT = 128, 16, 128


class Buffer(NamedTuple):
    """One line of the memory account."""

    what: str
    num_bytes: int


def communication_buffers(rank: RankShard, max_num_batched_tokens: int) -> tuple[Buffer, ...]:
    """Return the buffers of one rank; none if a replica is one device."""
    layout, experts = rank.layout, rank.model.experts
    found = []
    communicators = _communicators(layout)
    if communicators:
        num_bytes = communicators * _NCCL_BUFFERS * _NCCL_BUFFER
        groups = "a group" if communicators == 1 else f"{communicators} groups"
        found.append(Buffer(f"NCCL, {groups} (assumed)", num_bytes))
    ranks = layout.tensor_parallel_size
    if ranks in _CUSTOM_ALL_REDUCE_RANKS and layout.in_node(ranks) == ranks:
        found.append(Buffer("custom all-reduce", _CUSTOM_ALL_REDUCE))
    if experts is not None and layout.data_parallel_size > 1:
        found += _deepep(rank, experts, min(max_num_batched_tokens, _DEEPEP_TOKENS))
    return tuple(found)


def low_latency_bytes(tokens: int, hidden: int, num_experts: int) -> int:
    """Return the bytes of DeepEP's buffer for low-latency exchanges of up to ``tokens`` per rank.

    There are two sets, used in turn, each of a send buffer, a receive buffer for every expert and
    rank, and flags; messages are of 16 bits with room for scales. The number of ranks does not
    matter: with more ranks each holds fewer experts. Source: DeepEP ``LowLatencyLayout`` and its
    size hint.
    """
    scales = hidden // _SCALE_GROUP
    dispatch = _HEADER + max(2 * hidden, hidden + 4 * scales)
    combine = 4 * scales + 2 * hidden
    send = max(tokens * dispatch, num_experts * tokens * combine)
    receive = num_experts * tokens * max(dispatch, combine)
    flags = -(-4 * num_experts // _ALIGNMENT) * _ALIGNMENT
    total = 2 * (send + receive + flags)
    return -(-total // _ALIGNMENT) * _ALIGNMENT


def _communicators(layout: Layout) -> int:
    """Return the number of groups that exchange through NCCL, one for each kind of parallelism."""
    sizes = (
        layout.tensor_parallel_size,
        layout.prefill_context_parallel_size,
        layout.decode_context_parallel_size,
        layout.pipeline_parallel_size,
        layout.data_parallel_size,
        layout.expert_ranks if layout.enable_expert_parallel else 1,
    )
    return sum(size > 1 for size in sizes)


def _deepep(rank: RankShard, experts: Moe, tokens: int) -> list[Buffer]:
    layout = rank.layout
    if not layout.all2all_backend.startswith("deepep"):
        return []
    ranks = layout.expert_ranks
    is_in_node = layout.in_node(ranks, layout.pipeline_parallel_size) == ranks
    found = [Buffer("DeepEP, fabric", _DEEPEP_FABRIC)]
    if layout.all2all_backend == "deepep_low_latency":
        count = experts.num_experts + layout.num_redundant_experts
        width = experts.latent or rank.model.hidden_size
        num_bytes = low_latency_bytes(tokens, width, count)
        found.append(Buffer(f"DeepEP, {tokens} tokens a rank", num_bytes))
    elif not is_in_node:
        found.append(Buffer("DeepEP, network", _DEEPEP_FABRIC))
    return found
