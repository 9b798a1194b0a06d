"""The shape of a step: the batch as sums, which is all that a cost model sees of it.

Layers that look at a part of the context (sliding windows, the best k tokens) need sums of contexts
clipped to a length; layers that keep a part of the prompt need sums of prompts clipped to budgets
plus all generated tokens. Which sums are needed is declared beforehand in
``EngineConfig.clip_tokens``, one `Clip` each; a shape carries the four numbers of `ClippedSums` for
each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Clip = int | tuple[int, ...]
"""A length W stands for min(context, W). Several numbers are budgets of the prompt, each for an
equal share of some layers: the sum over them of min(prompt, budget), plus all generated tokens once
per budget."""


class ClippedSums(NamedTuple):
    """Sums of clipped contexts. In the step log the names carry the clip.

    Prompt budgets act when a prompt is complete: its chunks add nothing to them.
    """

    decode_clipped_tokens: int = 0
    """Clipped contexts, summed over the decoding sequences."""
    decode_growing_seqs: int = 0
    """Decoding sequences with a context below W: the growth of the sum per step. For budgets: all
    sequences, once per budget."""
    prefill_clipped_tokens: int = 0
    """min(context, W) before the chunk, summed over the prefilling sequences."""
    prefill_clipped_pairs: int = 0
    """Query-key pairs of the prefills, with at most W keys per query."""


class SharedSums(NamedTuple):
    """Prefixes that several decoding sequences share; the names are step log columns."""

    decode_shared_tokens: int = 0
    """Context tokens in shared prefixes, summed over the sequences."""
    decode_shared_reads: int = 0
    """Context tokens in shared prefixes, each counted once however many sequences share it."""
    decode_shared_parts: int = 0
    """Partial attention results to merge: one per sequence and stretch shared by the same
    sequences."""


class SpeculatedSums(NamedTuple):
    """What a step verifies; the names are step log columns.

    In a run of steps contexts grow unevenly, by the accepted tokens. For each clip that is a
    length, one more column follows: the rise of its clipped contexts, counted as in `context_rise`.
    """

    draft_tokens: int = 0
    """Tokens drafted and verified, equally many for each decoding sequence; they need logits too.
    """
    accepted_tokens: int = 0
    """Drafted tokens that became part of an answer; for a run, over all its steps. The engine
    cannot know it when it plans, so prices do not depend on it, only the account that time goes to.
    """
    context_rise: int = 0
    """For a run: the growth of contexts before each step, summed over the steps."""


class AdapterSums(NamedTuple):
    """The LoRA adapters of a step; the names are step log columns."""

    decode_adapters: int = 0
    """Different adapters of the decoding sequences."""
    decode_adapter_tokens: int = 0
    """New tokens of decoding sequences with an adapter, drafts included."""
    prefill_adapters: int = 0
    """Different adapters of the prefilling sequences that no decoding sequence uses."""
    prefill_adapter_tokens: int = 0
    """New tokens of prefilling sequences with an adapter."""


class StepShape(NamedTuple):
    """One engine step. Every field is a count over the whole batch of one engine.

    A sequence is either decoding (one new token on a computed context) or prefilling (a chunk of
    one or more new tokens). The fields are columns of the step log (`shape_columns`).
    """

    decode_seqs: int = 0
    decode_context_tokens: int = 0
    """Tokens in the KV cache before the step, summed over the decoding sequences."""
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    """New tokens computed by the prefilling sequences."""
    prefill_context_tokens: int = 0
    """Tokens in the KV cache before the step, summed over the prefilling sequences."""
    prefill_pairs: int = 0
    """Causal query-key pairs of the prefills: the sum of ``n * start + n * (n + 1) / 2``."""
    logits: int = 0
    """Rows of the LM head: sequences that sample a token in this step, and drafts to verify."""
    clipped: tuple[int, ...] = ()
    """The `ClippedSums` of each entry of `EngineConfig.clip_tokens`, one after the other."""
    shared: tuple[int, ...] = ()
    """The `SharedSums`, if `EngineConfig.shared_prefix_attention` is on."""
    speculated: tuple[int, ...] = ()
    """The `SpeculatedSums` and the rise of each clip, if the engine speculates."""
    adapters: tuple[int, ...] = ()
    """The `AdapterSums`, if the engine serves adapters."""

    @property
    def draft_tokens(self) -> int:
        """Drafted tokens to verify."""
        return self.speculated[0] if self.speculated else 0

    @property
    def num_tokens(self) -> int:
        """New tokens computed in the step: one per decode, its drafts, and ``prefill_tokens``."""
        return self.decode_seqs + self.draft_tokens + self.prefill_tokens


SUMS = StepShape._fields[:-4]
"""The fields of a shape that are single numbers."""


def clip_columns(clip: Clip) -> tuple[str, str, str, str]:
    """Return the column names of one clip: the fields of `ClippedSums` with the length or
    budgets."""
    name = str(clip)
    if isinstance(clip, tuple):
        name = "_".join(("prompt", *map(str, dict.fromkeys((clip[0], clip[-1])))))
    growing, seqs, context, pairs = ClippedSums._fields
    return (f"{growing}_{name}", f"{seqs}_{name}", f"{context}_{name}", f"{pairs}_{name}")


def shape_columns(
    clip_tokens: tuple[Clip, ...] = (),
    *,
    shares_prefixes: bool = False,
    speculates: bool = False,
    adapters: bool = False,
) -> tuple[str, ...]:
    """Return the column names of a shape, flat."""
    clipped = (name for clip in clip_tokens for name in clip_columns(clip))
    shared: tuple[str, ...] = SharedSums._fields if shares_prefixes else ()
    if adapters:
        shared += AdapterSums._fields
    if not speculates:
        return (*SUMS, *clipped, *shared)
    rises = (rise_column(clip) for clip in clip_tokens if isinstance(clip, int))
    return (*SUMS, *clipped, *SpeculatedSums._fields, *rises, *shared)


def rise_column(length: int) -> str:
    """Return the name of the column with the rise of clipped contexts
    (`SpeculatedSums.context_rise`)."""
    return f"clip_rise_{length}"


def ordered(clips: Iterable[Clip]) -> tuple[Clip, ...]:
    """Sort clips into the order of ``clip_tokens``: lengths, ascending, then prompt budgets."""
    found = set(clips)
    budgets = sorted(clip for clip in found if isinstance(clip, tuple))
    return (*sorted(clip for clip in found if isinstance(clip, int)), *budgets)


def clip_layers(clip: Clip) -> int:
    """Return how often a generated token counts in a clip's sum."""
    return len(clip) if isinstance(clip, tuple) else 1


def clipped(clip: Clip, context: int, prompt: int) -> int:
    """Return what a decoding sequence adds to a clip's sum; ``prompt`` tokens of ``context`` are
    its prompt."""
    if isinstance(clip, int):
        return min(context, clip)
    return len(clip) * context - dropped(clip, prompt)


def dropped(budgets: tuple[int, ...], prompt: int) -> int:
    """Return the tokens of a prompt beyond its budgets, summed over the budgets."""
    return sum(max(0, prompt - budget) for budget in budgets)


def shape_values(shape: StepShape) -> tuple[int, ...]:
    """Return the values of `shape_columns`, in the same order."""
    return (*shape[:-4], *shape.clipped, *shape.speculated, *shape.shared, *shape.adapters)


def causal_pairs(start: int, tokens: int) -> int:
    """Return the query-key pairs of ``tokens`` new tokens after ``start`` computed ones."""
    return tokens * start + tokens * (tokens + 1) // 2


def causal_pairs_clipped(start: int, tokens: int, cap_tokens: int | None) -> int:
    """Return the query-key pairs if each query reaches at most ``cap_tokens`` keys, its own
    included."""
    last = start + tokens
    if cap_tokens is None or last <= cap_tokens:
        return tokens * start + tokens * (tokens + 1) // 2
    growing = max(0, cap_tokens - start)
    inside = growing * start + growing * (growing + 1) // 2
    return inside + (tokens - growing) * cap_tokens


def decode_shape(
    seqs: int, context: int, clip_tokens: tuple[Clip, ...] = (), prompt: int | None = None
) -> StepShape:
    """Return a step of ``seqs`` decodes with equal contexts; ``prompt`` tokens of each, None: all
    of it."""
    sums: list[int] = []
    for clip in clip_tokens:
        growing = clip_layers(clip) if isinstance(clip, tuple) else context < clip
        reach = clipped(clip, context, context if prompt is None else prompt)
        sums += (seqs * reach, seqs * growing, 0, 0)
    return StepShape(seqs, seqs * context, logits=seqs, clipped=tuple(sums))


def grown(shape: StepShape, steps: int) -> StepShape:
    """Return a decode-only step ``steps`` equal steps later, before any context reaches a cap."""
    sums = list(shape.clipped)
    for tokens in range(0, len(sums), len(ClippedSums._fields)):
        sums[tokens] += steps * sums[tokens + 1]
    context = shape.decode_context_tokens + steps * shape.decode_seqs
    return shape._replace(decode_context_tokens=context, clipped=tuple(sums))


def risen(shape: StepShape, context: int, clips: tuple[int, ...] = ()) -> StepShape:
    """Return the step of a run before which contexts, and those of each clip, have grown by these
    sums."""
    sums = list(shape.clipped)
    for place, rise in enumerate(clips):
        sums[place * len(ClippedSums._fields)] += rise
    total = shape.decode_context_tokens + context
    return shape._replace(decode_context_tokens=total, clipped=tuple(sums))


def chunk_shape(
    start: int, tokens: int, clip_tokens: tuple[Clip, ...] = (), *, samples: bool = True
) -> StepShape:
    """Return a step with one chunk of a prompt; ``samples``: it is the prompt's last chunk."""
    pairs, sums = causal_pairs(start, tokens), list[int]()
    for clip in clip_tokens:
        sums += (0, 0, *chunk_sums(clip, start, tokens))
    return StepShape(0, 0, 1, tokens, start, pairs, int(samples), tuple(sums))


def chunk_sums(clip: Clip, start: int, tokens: int) -> tuple[int, int]:
    """Return what a chunk adds to the two prefill sums of a clip."""
    if isinstance(clip, tuple):
        return 0, 0
    return min(start, clip), causal_pairs_clipped(start, tokens, clip)


def joined(shapes: Iterable[StepShape]) -> StepShape:
    """Join parts of a batch into one step; at least one part, all with the same clips."""
    parts = [shape_values(shape) for shape in shapes]
    summed = [sum(column) for column in zip(*parts, strict=True)]
    return StepShape(*summed[: len(SUMS)])._replace(clipped=tuple(summed[len(SUMS) :]))
