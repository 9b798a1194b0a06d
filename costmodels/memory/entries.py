"""The weights, workspace and exchange buffers on one rank's device, line by line.

For NCCL's communicators only the size of a buffer is documented; their number is assumed here, and
the line says so. The other buffer sizes are those that vLLM and DeepEP allocate.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from costmodels.engines.profile import EngineProfile
from costmodels.formats import ModelPrecision, load_format
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.memory.streaming import ON_DEVICE, RankOffload
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.moe import Moe

WEIGHTS, STATE, WORKSPACE, UNUSED = "weights", "state", "workspace", "unused"
LINKS = "links"
_CLASSES = (
    ("attention", "attention matrices"),
    ("ffn", "dense FFNs and shared experts"),
    ("experts", "routed experts"),
    ("embedding", "embeddings and LM head"),
    ("others", "norms, biases, routers"),
    ("towers", "vision and audio towers"),
)

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
_GATHERED_TOKENS = 64 * 1024
_SCALE_GROUP, _HEADER, _ALIGNMENT = 128, 16, 128


class MemoryEntry(NamedTuple):
    """One line of a device's memory account."""

    group: str
    what: str
    format: str
    """The number format; empty if there is none."""
    num_bytes: int


def weight_entries(rank: RankShard, away: RankOffload = ON_DEVICE) -> tuple[MemoryEntry, ...]:
    """Return the weights on one rank by class of matrix; they add up to `RankShard.weight_bytes`.

    For a rank of a pipeline these are the layers' classes in the largest stage's share, and one of
    the two ends. Layer weights that are ``away`` are left out, each class in proportion, and their
    buffer is added.
    """
    gone = away.host_weight_bytes + away.disk_weight_bytes
    resident = Fraction(rank.layer_weight_bytes - gone, rank.layer_weight_bytes)
    params, precision = rank.local.params(), rank.local.precision
    is_pipeline = rank.layout.pipeline_parallel_size > 1
    found = []
    for name, what in _CLASSES:
        count = getattr(params, name)
        if not count:
            continue
        stored = _format_of(precision, name)
        size = load_format(stored).num_bytes(count)
        if name not in ("embedding", "towers"):
            size = int(size * rank.stage_share * resident)
        elif is_pipeline and not rank.local.tie_word_embeddings:
            size //= 2
        found.append(MemoryEntry(WEIGHTS, what, stored, size))
    # Entries are whole bytes: the last class takes what rounding leaves.
    rounding = rank.weight_bytes - gone - sum(entry.num_bytes for entry in found)
    if rounding:
        found[-1] = found[-1]._replace(num_bytes=found[-1].num_bytes + rounding)
    if away.buffer_bytes:
        found.append(MemoryEntry(WEIGHTS, "two layers on their way", "", away.buffer_bytes))
    return tuple(found)


def workspace_entries(
    rank: RankShard,
    profile: EngineProfile,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    *,
    block_tokens: int = 16,
    writes_scores: bool = False,
) -> tuple[MemoryEntry, ...]:
    """Return the memory peak of the engine's start-up run beyond the weights, the runtime and
    exchange buffers.

    The run pushes the largest step through the layers, then samples ``max_num_seqs`` rows; the two
    peaks do not overlap, so the larger one counts. Experts need their inputs and outputs once for
    every expert chosen. Latent attention keeps a workspace for contexts that prompts gather, of
    64 Ki tokens or a block of ``block_tokens`` for each sequence, and expands all of it once (vLLM
    0.25.1, mla_attention.py). ``writes_scores``: attention without a fused kernel holds a prompt's
    scores of all heads of a layer.
    """
    model = rank.local
    hidden = model.hidden_size
    widths = [mixer.row_elements(hidden) for mixer, _ in model.mixers]
    widest = max(*widths, *(ffn.row_elements(hidden) for ffn, _ in model.ffns), 0)
    # Residual, norm output and layer output live beside the widest operator.
    vectors = 3 + (model.residual.kept if model.residual else 0)
    activations = max_num_batched_tokens * (vectors * hidden + widest) * model.dtype_bytes
    if writes_scores:
        heads = max(mixer.heads for mixer, _ in model.mixers if isinstance(mixer, Gqa))
        activations += heads * max_num_batched_tokens**2 * model.dtype_bytes
    scores = " and scores" if writes_scores else ""
    latent = next((mixer for mixer, _ in model.mixers if isinstance(mixer, Mla)), None)
    gathered: tuple[MemoryEntry, ...] = ()
    if latent is not None:
        tokens = max(_GATHERED_TOKENS, max_num_seqs * block_tokens)
        expanded = latent.heads * (latent.nope + latent.v_dim)
        activations += tokens * expanded * model.dtype_bytes
        kept = tokens * latent.latent * model.dtype_bytes
        what = f"contexts of prompts, {tokens:,} tokens"
        gathered = (MemoryEntry(WORKSPACE, what, model.dtype, kept),)
    per_logit = profile.sampler_bytes_per_logit(rank.model)
    sampler = max_num_seqs * rank.model.vocab_size * per_logit
    kept_hidden = max_num_batched_tokens * hidden * model.dtype_bytes
    sampler += profile.hidden_copies_beside_sampler * kept_hidden
    peak = (
        (f"activations{scores} of {max_num_batched_tokens:,} tokens", model.dtype, activations)
        if activations >= sampler
        else (f"sampler of {max_num_seqs:,} rows", "", sampler)
    )
    encoded: tuple[MemoryEntry, ...] = ()
    if model.towers:  # what the encoder may put out in a step is kept until its tokens are computed
        kept = max_num_batched_tokens * hidden * model.dtype_bytes
        what = f"encoder cache of {max_num_batched_tokens:,} tokens"
        encoded = (MemoryEntry(WORKSPACE, what, model.dtype, kept),)
    return (
        MemoryEntry(WORKSPACE, *peak),
        *gathered,
        *_expert_buffers(rank, profile, max_num_batched_tokens),
        *encoded,
        MemoryEntry(WORKSPACE, "runtime, CUDA graphs", "", profile.runtime_bytes),
        *communication_buffers(rank, max_num_batched_tokens, profile.all_reduce_fusion_bytes),
    )


def _expert_buffers(
    rank: RankShard, profile: EngineProfile, max_num_batched_tokens: int
) -> tuple[MemoryEntry, ...]:
    """Return the buffers between the matrices of routed experts, for each expert chosen: one as
    wide as the input or the gated projections, one as the input or what they give (vLLM's
    ``TritonExperts.workspace_shapes``)."""
    experts = rank.local.experts
    if experts is None or not profile.expert_buffers_kept:
        return ()
    width, inner = experts.latent or rank.local.hidden_size, experts.width
    elements = max(width, inner) + max(width, 2 * inner)
    tokens = max_num_batched_tokens * experts.top_k
    size = tokens * elements * rank.local.dtype_bytes
    return (MemoryEntry(WORKSPACE, "buffers of routed experts", rank.local.dtype, size),)


def _format_of(precision: ModelPrecision, name: str) -> str:
    stored: str = precision.dtype if name in ("others", "towers") else getattr(precision, name)
    return stored


def communication_buffers(
    rank: RankShard, max_num_batched_tokens: int, all_reduce_fusion_bytes: int = 0
) -> tuple[MemoryEntry, ...]:
    """Return the buffers that exchanges between ranks hold from start to end on each of them.

    There are none if a replica is one device. ``all_reduce_fusion_bytes`` is what all-reduces fused
    with norms keep, with tensor parallelism.
    """
    layout, experts = rank.layout, rank.model.experts
    found = []
    communicators = _communicators(layout)
    if communicators:
        num_bytes = communicators * _NCCL_BUFFERS * _NCCL_BUFFER
        groups = "a group" if communicators == 1 else f"{communicators} groups"
        found.append(_buffer(f"NCCL, {groups} (assumed)", num_bytes))
    ranks = layout.tensor_parallel_size
    if ranks in _CUSTOM_ALL_REDUCE_RANKS and layout.in_node(ranks) == ranks:
        found.append(_buffer("custom all-reduce", _CUSTOM_ALL_REDUCE))
    if ranks > 1 and all_reduce_fusion_bytes:
        found.append(_buffer("other all-reduces", all_reduce_fusion_bytes))
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


def _deepep(rank: RankShard, experts: Moe, tokens: int) -> list[MemoryEntry]:
    layout = rank.layout
    if not layout.all2all_backend.startswith("deepep"):
        return []
    ranks = layout.expert_ranks
    is_in_node = layout.in_node(ranks, layout.pipeline_parallel_size) == ranks
    found = [_buffer("DeepEP, fabric", _DEEPEP_FABRIC)]
    if layout.all2all_backend == "deepep_low_latency":
        count = experts.num_experts + layout.num_redundant_experts
        width = experts.latent or rank.model.hidden_size
        num_bytes = low_latency_bytes(tokens, width, count)
        found.append(_buffer(f"DeepEP, {tokens} tokens a rank", num_bytes))
    elif not is_in_node:
        found.append(_buffer("DeepEP, network", _DEEPEP_FABRIC))
    return found


def _buffer(what: str, num_bytes: int) -> MemoryEntry:
    return MemoryEntry(LINKS, what, "", num_bytes)
