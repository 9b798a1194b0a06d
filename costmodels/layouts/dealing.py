"""Deals a step's batch out to data-parallel ranks, and to the micro-batches that each works on.

Whole sequences are dealt, as evenly as their number allows; the result describes the rank and
micro-batch with the most. `deal` does one step in integers, `deal_columns` many at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.layouts.layout import Layout
from costmodels.work import Array
from sim.arrays import Int64
from sim.shape import SUMS, ClippedSums, StepShape


class Limits(NamedTuple):
    """Limits of one rank and micro-batch."""

    max_num_batched_tokens: int
    max_num_seqs: int
    largest_graph: int


class Dealt(NamedTuple):
    """The busiest rank and micro-batch of a step."""

    shape: StepShape
    """Shape of the busiest micro-batch, without logits."""
    logits: int
    """Logits of that micro-batch; of the whole rank if halves overlap, as they are sampled
    together."""
    mean_tokens: int
    """Mean tokens per rank, over all that share experts: index of the group's tables."""
    sampling: int = 1
    """Number of micro-batches with logits."""
    halves: bool = False
    drain: int = 0
    """Micro-batches that the last chunk of a prompt still waits for behind the first."""


class DealtColumns(NamedTuple):
    """The busiest rank and micro-batch of ``n`` steps: arrays are ``[n]``."""

    shape: dict[str, Array]
    tokens: Int64
    """Tokens of the shape: decodes and prefill."""
    logits: Int64
    mean_tokens: Int64
    sampling: Int64
    halves: NDArray[np.bool_]
    drain: Int64


def deal(shape: StepShape, layout: Layout, limits: Limits) -> Dealt:
    """Deal one step and return its busiest part."""
    whole = _deal(shape, layout, limits, layout.pipeline_parallel_size)
    if not layout.enable_dbo or whole.shape.num_tokens < _least(layout, shape.prefill_tokens > 0):
        return whole
    return _deal(shape, layout, limits, 2)._replace(
        logits=whole.logits, sampling=whole.sampling, halves=True
    )


def deal_columns(columns: Mapping[str, Array], layout: Layout, limits: Limits) -> DealtColumns:
    """Deal many steps, given as one array per field of `StepShape`."""
    whole = _deal_columns(columns, layout, limits, layout.pipeline_parallel_size)
    if not layout.enable_dbo:
        return whole
    least = np.where(columns["prefill_tokens"] > 0, _least(layout, True), _least(layout, False))
    halved = whole.tokens >= least
    half = _deal_columns(columns, layout, limits, 2)

    def chosen(ours: NDArray[np.float64], others: NDArray[np.float64]) -> Array:
        found: Array = np.where(halved, ours, others)
        return found

    return DealtColumns(
        shape={name: chosen(half.shape[name], whole.shape[name]) for name in half.shape},
        tokens=np.where(halved, half.tokens, whole.tokens),
        logits=whole.logits,
        mean_tokens=np.where(halved, half.mean_tokens, whole.mean_tokens),
        sampling=whole.sampling,
        halves=halved,
        drain=whole.drain,
    )


def prompt_share(shape: StepShape, ranks: int) -> StepShape:
    """Return the part of a step on each of ``ranks`` that share prompts: a part of the tokens of
    prompts and all decodes.

    A rank's tokens attend to those of the other ranks, which therefore count as context.
    """
    if ranks == 1 or not shape.prefill_tokens:
        return shape
    tokens = _ceil(shape.prefill_tokens, ranks)
    return shape._replace(
        prefill_tokens=tokens,
        prefill_context_tokens=shape.prefill_context_tokens + shape.prefill_tokens - tokens,
        prefill_pairs=_ceil(shape.prefill_pairs, ranks),
    )


def prompt_columns(columns: Mapping[str, Array], ranks: int) -> Mapping[str, Array]:
    """Return the columns of `prompt_share` of many steps."""
    if ranks == 1:
        return columns
    whole = columns["prefill_tokens"]
    tokens = np.ceil(whole / ranks)
    return {
        **columns,
        "prefill_tokens": tokens,
        "prefill_context_tokens": columns["prefill_context_tokens"] + (whole - tokens),
        "prefill_pairs": np.ceil(columns["prefill_pairs"] / ranks),
    }


def _least(layout: Layout, has_prefill: bool) -> int:
    """Return the tokens per rank from which its batch is halved."""
    least = layout.dbo_prefill_token_threshold if has_prefill else layout.dbo_decode_token_threshold
    return max(2, least)


def _deal(shape: StepShape, layout: Layout, limits: Limits, micro_batches: int) -> Dealt:
    ranks = layout.data_parallel_size
    ways = ranks * micro_batches
    decodes = _ceil(shape.decode_seqs, ways)
    # Tokens per decode: drafts to verify are equally many for every sequence.
    each = 1 + shape.draft_tokens // max(shape.decode_seqs, 1)
    prompts = _ceil(shape.prefill_seqs, ways)
    tokens, share = 0, (0, 1)
    if shape.prefill_tokens:
        tokens = _ceil(shape.prefill_tokens * prompts, shape.prefill_seqs)
        room = max(1, limits.max_num_batched_tokens - each * decodes)
        # Contexts go with sequences; if a chunk is limited by the room, they go with its tokens.
        share = (room, shape.prefill_tokens) if tokens > room else (prompts, shape.prefill_seqs)
        tokens = min(tokens, room)
    part = partial(_part, shape=shape, own=(decodes, tokens, prompts), share=share)
    sums = [part(name, getattr(shape, name)) for name in SUMS]
    clipped = map(part, cycle(ClippedSums._fields), shape.clipped)
    drafts = ((each - 1) * decodes,) if each > 1 else ()
    own = StepShape._make([*sums, tuple(clipped), (), drafts, ()])
    decode_logits = min(each * shape.decode_seqs, shape.logits)
    logits = _ceil(decode_logits, ways) + _ceil(shape.logits - decode_logits, ways)
    everywhere = each * _ceil(shape.decode_seqs, micro_batches)
    everywhere += min(shape.prefill_tokens, ranks * tokens)
    mean = _ceil(everywhere, ranks)
    if not shape.prefill_tokens and own.num_tokens <= limits.largest_graph:
        mean = own.num_tokens  # ranks replay one graph size, padded to the busiest of them
    drain = 0
    if micro_batches > 1 and not layout.enable_dbo and shape.logits > decode_logits:
        chunks = _ceil(shape.prefill_tokens, limits.max_num_batched_tokens)
        chunks = min(micro_batches, chunks)
        drain = chunks - 1 if shape.prefill_seqs < chunks else 0
    return Dealt(
        shape=own,
        logits=min(logits, limits.max_num_seqs),
        mean_tokens=min(mean, limits.max_num_batched_tokens),
        sampling=min(micro_batches, shape.logits),
        drain=drain,
    )


def _part(
    name: str, value: int, shape: StepShape, own: tuple[int, int, int], share: tuple[int, int]
) -> int:
    """Return the part of one sum of the step that a rank and micro-batch gets.

    Decode sums are rounded down, so that a context that has grown by a token is also longer by one
    here.
    """
    decodes, tokens, prompts = own
    if name == "logits":
        return 0
    if name.startswith("decode"):
        if name == "decode_seqs":
            return decodes
        return value * decodes // shape.decode_seqs if shape.decode_seqs else 0
    if name == "prefill_seqs":
        return prompts
    if name == "prefill_tokens":
        return tokens
    return _ceil(value * share[0], share[1])


def _deal_columns(
    columns: Mapping[str, Array], layout: Layout, limits: Limits, micro_batches: int
) -> DealtColumns:
    ranks = layout.data_parallel_size
    ways = ranks * micro_batches
    seqs, prefills = columns["decode_seqs"], columns["prefill_seqs"]
    prefill_tokens, all_logits = columns["prefill_tokens"], columns["logits"]
    decodes, prompts = np.ceil(seqs / ways), np.ceil(prefills / ways)
    each = 1 + columns.get("draft_tokens", np.zeros_like(seqs)) / np.maximum(seqs, 1)
    tokens = np.ceil(prefill_tokens * prompts / np.maximum(prefills, 1))
    room = np.maximum(limits.max_num_batched_tokens - each * decodes, 1)
    by_tokens, by_seqs = room / np.maximum(prefill_tokens, 1), prompts / np.maximum(prefills, 1)
    prefill_share = np.where(tokens > room, by_tokens, by_seqs)
    tokens = np.minimum(tokens, room)
    decode_share = decodes / np.maximum(seqs, 1)
    own = {"decode_seqs": decodes, "prefill_seqs": prompts, "prefill_tokens": tokens}
    shape = {
        name: own.get(name, values * (decode_share if name.startswith("decode") else prefill_share))
        for name, values in columns.items()
    }
    shape["logits"] = np.zeros_like(decodes)
    decode_logits = np.minimum(each * seqs, all_logits)
    logits = np.ceil(decode_logits / ways) + np.ceil((all_logits - decode_logits) / ways)
    decoded = each * decodes
    everywhere = each * np.ceil(seqs / micro_batches) + np.minimum(prefill_tokens, ranks * tokens)
    mean = np.ceil(everywhere / ranks)
    mean = np.where((prefill_tokens == 0) & (decoded <= limits.largest_graph), decoded, mean)
    drain = np.zeros_like(decodes)
    if micro_batches > 1 and not layout.enable_dbo:
        chunks = np.ceil(prefill_tokens / limits.max_num_batched_tokens)
        chunks = np.minimum(micro_batches, chunks)
        waits = (all_logits > decode_logits) & (prefills < chunks)
        drain = np.where(waits, chunks - 1, 0.0)
    return DealtColumns(
        shape=shape,
        tokens=(decoded + tokens).astype(np.int64),
        logits=np.minimum(logits, limits.max_num_seqs).astype(np.int64),
        mean_tokens=np.minimum(mean, limits.max_num_batched_tokens).astype(np.int64),
        sampling=np.minimum(all_logits, micro_batches).astype(np.int64),
        halves=np.zeros(len(decodes), bool),
        drain=drain.astype(np.int64),
    )


def _ceil(value: int, parts: int) -> int:
    return -(-value // parts) if parts else 0
