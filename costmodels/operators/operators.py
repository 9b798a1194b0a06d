"""The operators of one engine step on one tensor-parallel rank: their FLOPs and bytes.

Each operator is described for whole arrays of batch sizes at once, so that a table over all token
counts takes a handful of numpy expressions. `roofline` turns the work into seconds. What a layer
contributes is in the file of its kind; here are the parts around the layers, and the sum of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.layouts.exchanges import across, group_exchanges, rank_exchanges, shares_experts
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import AttentionWork, ContextTerm, Ffn, Mixer
from costmodels.models.spec import LayerGroup, ModelSpec, ffns_of, mixers_of
from costmodels.work import Array, Operator, all_reduce, elementwise, linear, operator
from sim.shape import Clip


def token_operators(shard: RankShard, tokens: Array) -> list[Operator]:
    """Return the operators that depend only on the number of new tokens; ``tokens`` is ``[n]``.

    If ranks with tokens of their own share experts, ``tokens`` are one rank's; what depends on the
    tokens of all ranks is in `group_operators`. The attention kernels appear with no work: their
    launch is paid in every step, their work depends on contexts (see `decode_operators`).
    """
    groups = tuple(group for group in shard.local.layers if not group.skips_prompt)
    model = shard.local
    return [
        elementwise("embedding", 1, 2 * model.hidden_size * model.dtype_bytes, tokens),
        *_layer_operators(shard, groups, tokens, more_norms=1),
    ]


def group_operators(shard: RankShard, tokens: Array) -> list[Operator]:
    """Return the routed experts that data-parallel ranks share, and the exchanges that bring them
    tokens.

    ``tokens`` are those of all ranks. The list is empty if no ranks share experts.
    """
    if not shares_experts(shard.layout):
        return []
    operators = []
    for ffn, count in ffns_of(shard.local.layers):
        if isinstance(ffn, Moe):
            operators += ffn.routed_operators(shard.frame, count, tokens)
    return operators + group_exchanges(shard, shard.local.layers, tokens)


def _layer_operators(
    shard: RankShard, groups: tuple[LayerGroup, ...], tokens: Array, more_norms: int = 0
) -> list[Operator]:
    """Return the operators of ``groups`` of layers, equal layers together."""
    model, frame = shard.local, shard.frame
    mixers, ffns = mixers_of(groups), ffns_of(groups)
    norms = sum(group.count * group.norms for group in groups) + more_norms
    # A norm adds the residual first: it reads and writes both.
    part = np.ceil(tokens / frame.ranks) if shard.layout.enable_sp else tokens
    vector_bytes = frame.hidden * model.dtype_bytes
    operators = [elementwise("norms", norms, 4 * vector_bytes, part)]
    if model.residual is not None:
        calls = sum(count for _, count in (*mixers, *ffns))
        name, moved, _, launches = model.residual
        operators.append(elementwise(name, calls, moved * vector_bytes, part, launches))
    for mixer, count in mixers:
        added = mixer.token_operators(frame, count, tokens)
        if len(mixers) > 1:
            added = [replace(one, name=f"{mixer.kind} {one.name}") for one in added]
        operators += added
    operators += _block_conversions(model, mixers, ffns, tokens)
    for ffn, count in ffns:
        if isinstance(ffn, Moe) and shares_experts(shard.layout):
            part = np.ceil(tokens / frame.ranks) if shard.layout.splits_tokens else tokens
            before, after = ffn.own_operators(frame, count, part)
            operators += [*before, *after]
        else:
            operators += ffn.token_operators(frame, count, tokens)
    operators = [across(shard.layout, one) for one in operators]
    return operators + rank_exchanges(shard, groups, tokens)


def logit_operators(
    shard: RankShard, logits: Array, sampling_bytes_per_logit: float
) -> list[Operator]:
    """Return the LM head and the sampler over ``logits`` rows. Each rank samples the full
    vocabulary."""
    model, vocab_size = shard.local, shard.model.vocab_size
    hidden, precision = model.hidden_size, model.precision
    head = precision.embedding
    operators = [
        linear("lm_head", 1, hidden, model.vocab_size, logits, precision, head),
        operator(
            "sampling",
            "sampling",
            1,
            logits,
            activation_bytes=sampling_bytes_per_logit * vocab_size * logits,
        ),
    ]
    if shard.tensor_parallel_size > 1:
        row_bytes = vocab_size * model.dtype_bytes
        # A gather moves each part once: half of what an all-reduce does.
        gather = all_reduce("logits_gather", 1, row_bytes / 2, shard.tensor_parallel_size, logits)
        operators.append(across(shard.layout, gather))
    late = tuple(group for group in model.layers if group.skips_prompt)
    return [*operators, *_layer_operators(shard, late, logits)] if late else operators


class DecodeSums(NamedTuple):
    """The decoding sequences of ``n`` batches. Arrays are ``[n]``."""

    seqs: Array
    clipped: Mapping[Clip | None, Array]
    """Sum of the clipped contexts over the sequences, by clip; None: of the whole contexts."""


class PrefillSums(NamedTuple):
    """The prefilling sequences of ``n`` batches. Arrays are ``[n]``."""

    seqs: Array
    tokens: Array
    """New tokens of the step."""
    prefix: Mapping[Clip | None, Array]
    """Sum of min(cached tokens, cap), by cap."""
    pairs: Mapping[Clip | None, Array]
    """Sum over new tokens of min(tokens up to it, cap), by cap."""


def decode_operators(shard: RankShard, sums: DecodeSums) -> list[Operator]:
    """Return the attention work of decoding sequences: one operator per mixer and term of its
    work."""
    found = []
    for mixer, count in shard.local.mixers:
        work = mixer.attention(shard.local.precision)
        for term in work.decode:
            reach = sums.clipped[term.clip]
            found.append(term_operator(term, count, reach, reach))
        if work.decode_seq_bytes:
            once = ContextTerm(
                name="state", flops=work.decode_seq_flops, bytes=work.decode_seq_bytes
            )
            found.append(term_operator(once, count, sums.seqs, sums.seqs))
    return found


def prefill_operators(shard: RankShard, sums: PrefillSums) -> list[Operator]:
    """Return the attention work of prompt chunks, in the layers that all their tokens pass.

    If prompts leave early, their last token still passes the layers above; its single query is left
    out.
    """
    found = []
    for mixer, count in shard.local.prompt_mixers:
        work = mixer.attention(shard.local.precision)
        if work.short is None:
            found += _pair_operators(work.prefill, work.prefix_flops, count, sums)
        else:
            short = work.short
            # The pairs include a tile's idle queries, in all sums or in none.
            is_short = sums.pairs[short.longest_tokens] >= sums.pairs[None]
            chosen = _pair_operators(short.prefill, short.prefix_flops, count, sums)
            found += [_where(is_short, one) for one in chosen]
            others = _pair_operators(work.prefill, work.prefix_flops, count, sums)
            found += [_where(~is_short, one) for one in others]
        found += _chunk_operators(work, count, sums)
    if shard.local.encoder_flops:
        term = ContextTerm(name="encoder", flops=shard.local.encoder_flops)
        found.append(term_operator(term, 1, sums.tokens, sums.tokens))
    return found


def _pair_operators(
    terms: tuple[ContextTerm, ...], prefix_flops: float, count: int, sums: PrefillSums
) -> list[Operator]:
    """Return the work of chunks that is proportional to their query-key pairs and prefixes."""
    found = []
    for term in terms:
        reads = sums.prefix[term.clip] + sums.tokens
        found.append(term_operator(term, count, sums.pairs[term.clip], reads))
    if prefix_flops:
        term = ContextTerm(name="expand", flops=prefix_flops)
        found.append(term_operator(term, count, sums.prefix[None], sums.prefix[None]))
    return found


def _where(chosen: NDArray[np.bool_], one: Operator) -> Operator:
    """Return the operator with its work set to 0 in the batches that are not chosen."""
    return replace(one, flops=one.flops * chosen, state_bytes=one.state_bytes * chosen)


def _chunk_operators(work: AttentionWork, count: int, sums: PrefillSums) -> list[Operator]:
    """Return the work of chunks that is not proportional to their query-key pairs."""
    found = []
    token_flops, token_bytes = work.prefill_token_flops, work.prefill_token_bytes
    if (token_flops or token_bytes) and not work.prefill:
        # Linear attention: both are of the same kernels.
        term = ContextTerm(name="chunks", flops=token_flops, bytes=token_bytes)
        found.append(term_operator(term, count, sums.tokens, sums.tokens))
        token_flops = token_bytes = 0.0
    if work.prefill_seq_bytes or token_flops:
        term = ContextTerm(name="state", flops=token_flops, bytes=work.prefill_seq_bytes)
        found.append(term_operator(term, count, sums.tokens, sums.seqs))
    if token_bytes:
        term = ContextTerm(name="votes", bytes=token_bytes)
        found.append(term_operator(term, count, sums.tokens, sums.tokens))
    return found


def term_operator(term: ContextTerm, calls: int, flop_units: Array, byte_units: Array) -> Operator:
    """Return one term of attention for the given units of its FLOPs and of its bytes, both
    ``[n]``."""
    return operator(
        term.name,
        "attention",
        calls,
        flop_units,
        flops=term.flops * flop_units,
        state_bytes=term.bytes * byte_units,
        launches=0,
        peak=term.peak,
    )


def _block_conversions(
    model: ModelSpec,
    mixers: tuple[tuple[Mixer, int], ...],
    ffns: tuple[tuple[Ffn, int], ...],
    tokens: Array,
) -> list[Operator]:
    """Return the conversion of 16-bit inputs, left by norms and activations, to one scale per
    row and block."""
    precision = model.precision
    of_ffn = {"moe": precision.experts}
    parts: list[tuple[str, Mixer | Ffn, int]] = [
        *((precision.attention, mixer, count) for mixer, count in mixers),
        *((of_ffn.get(ffn.kind, precision.ffn), ffn, count) for ffn, count in ffns),
    ]
    wide = launches = 0
    for weights, part, count in parts:
        stored, multiplied = precision.matrix(weights)
        if stored.group > 1 and multiplied.bits < 16:
            widths = part.block_inputs(model.hidden_size)
            wide, launches = wide + sum(widths) * count, launches + len(widths) * count
    if not launches:
        return []
    bytes_per_row = (model.dtype_bytes + 1) * wide // launches
    return [elementwise("quantise_blocks", launches, bytes_per_row, tokens)]
