"""What a cost model may see of a step: the batch as sums, never the requests.

Layers that look at a part of the context (sliding windows, the best k tokens) need sums of contexts
clipped to a length. Which lengths is known beforehand: ``EngineConfig.clip_tokens``, in ascending
order. For each of them a shape carries the four numbers of `ClippedSums`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ClippedSums(NamedTuple):
    """Sums of contexts clipped to a length W; the names are those of step log columns, with _W."""

    decode_clipped_tokens: int = 0
    """Sum of min(context, W) over the decoding sequences."""
    decode_growing_seqs: int = 0
    """Decoding sequences with a context below W: what the sum grows by a step."""
    prefill_clipped_tokens: int = 0
    """Sum of min(context, W) over the prefilling sequences, before their chunks."""
    prefill_clipped_pairs: int = 0
    """Query-key pairs of the prefills, of which each query reaches at most W."""


class SharedSums(NamedTuple):
    """Prefixes that several decoding sequences share; the names are those of step log columns."""

    decode_shared_tokens: int = 0
    """Context tokens in them, summed over the sequences."""
    decode_shared_reads: int = 0
    """The same, each counted once however many sequences share it."""
    decode_shared_parts: int = 0
    """Partial results to merge: one a sequence and stretch that the same sequences share."""


class StepShape(NamedTuple):
    """One engine step. Every field is a count over the whole batch of one engine.

    A sequence is either decoding (one new token on a computed context) or prefilling (a chunk of
    one or more new tokens). The same names are the columns of the step log (`shape_columns`).
    """

    decode_seqs: int = 0
    decode_context_tokens: int = 0
    """Tokens already in the KV cache before the step, summed over the decoding sequences."""
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    """New tokens computed by the prefilling sequences."""
    prefill_context_tokens: int = 0
    """Tokens already in the KV cache before the step, summed over the prefilling sequences."""
    prefill_pairs: int = 0
    """Causal query-key pairs of the prefills: sum of ``n * start + n * (n + 1) / 2``."""
    logits: int = 0
    """Sequences that sample a token in this step: each needs one row of the LM head."""
    clipped: tuple[int, ...] = ()
    """The `ClippedSums` of each length in `EngineConfig.clip_tokens`, one after the other."""
    shared: tuple[int, ...] = ()
    """The `SharedSums`, where `EngineConfig.shared_prefix_attention` is on."""

    @property
    def num_tokens(self) -> int:
        """New tokens computed in the step (one a decode, ``prefill_tokens`` in all)."""
        return self.decode_seqs + self.prefill_tokens


SUMS = StepShape._fields[:-2]
"""The fields of a shape that are one number."""


def clip_columns(cap_tokens: int) -> tuple[str, str, str, str]:
    """The column names of one clip length: the fields of `ClippedSums`, with the length."""
    growing, seqs, context, pairs = ClippedSums._fields
    return (
        f"{growing}_{cap_tokens}",
        f"{seqs}_{cap_tokens}",
        f"{context}_{cap_tokens}",
        f"{pairs}_{cap_tokens}",
    )


def shape_columns(
    clip_tokens: tuple[int, ...] = (), *, shares_prefixes: bool = False
) -> tuple[str, ...]:
    """The columns of a shape, flat."""
    clipped = (name for cap in clip_tokens for name in clip_columns(cap))
    return (*SUMS, *clipped, *(SharedSums._fields if shares_prefixes else ()))


def shape_values(shape: StepShape) -> tuple[int, ...]:
    """The values of `shape_columns`."""
    return (*shape[:-2], *shape.clipped, *shape.shared)


def causal_pairs(start: int, tokens: int) -> int:
    """Query-key pairs of ``tokens`` new tokens after ``start`` computed ones."""
    return tokens * start + tokens * (tokens + 1) // 2


def causal_pairs_clipped(start: int, tokens: int, cap_tokens: int | None) -> int:
    """The same where each query reaches at most ``cap_tokens`` keys, its own included."""
    last = start + tokens
    if cap_tokens is None or last <= cap_tokens:
        return tokens * start + tokens * (tokens + 1) // 2
    growing = max(0, cap_tokens - start)
    inside = growing * start + growing * (growing + 1) // 2
    return inside + (tokens - growing) * cap_tokens


def decode_shape(seqs: int, context: int, clip_tokens: tuple[int, ...] = ()) -> StepShape:
    """``seqs`` decoding sequences of equal contexts."""
    clipped: list[int] = []
    for cap in clip_tokens:
        clipped += (seqs * min(context, cap), seqs * (context < cap), 0, 0)
    return StepShape(seqs, seqs * context, logits=seqs, clipped=tuple(clipped))


def grown(shape: StepShape, steps: int) -> StepShape:
    """A decode-only step as it is ``steps`` equal steps later, before any context reaches a cap."""
    clipped = list(shape.clipped)
    for tokens in range(0, len(clipped), len(ClippedSums._fields)):
        clipped[tokens] += steps * clipped[tokens + 1]
    context = shape.decode_context_tokens + steps * shape.decode_seqs
    return shape._replace(decode_context_tokens=context, clipped=tuple(clipped))


def chunk_shape(
    start: int, tokens: int, clip_tokens: tuple[int, ...] = (), *, samples: bool = True
) -> StepShape:
    """One chunk of a prompt; ``samples``: its last one."""
    pairs, clipped = causal_pairs(start, tokens), list[int]()
    for cap in clip_tokens:
        clipped += (0, 0, min(start, cap), causal_pairs_clipped(start, tokens, cap))
    return StepShape(0, 0, 1, tokens, start, pairs, int(samples), tuple(clipped))


def joined(shapes: Iterable[StepShape]) -> StepShape:
    """Several parts of a batch as one step; at least one, all with the same clip lengths."""
    parts = [shape_values(shape) for shape in shapes]
    summed = [sum(column) for column in zip(*parts, strict=True)]
    return StepShape(*summed[: len(SUMS)])._replace(clipped=tuple(summed[len(SUMS) :]))
