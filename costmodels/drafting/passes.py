"""One forward pass of a drafter beside the target's step: its share of the batch, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from costmodels.layouts.dealing import deal, deal_columns
from costmodels.layouts.layout import Layout
from costmodels.steps.cost import StepCost
from costmodels.work import FRACTION_BITS, HALF, Array
from sim.shape import ClippedSums, StepShape, clip_columns

_SUMS = len(ClippedSums._fields)


class DraftHost(NamedTuple):
    """Times of a drafter beside its kernels, in seconds."""

    pass_launch_s: float
    """Host time per pass."""
    pass_gap_s: float
    """GPU time per pass: small kernels before it."""
    seqs_base_s: float
    """Host time per step if the host does the drafting."""
    per_seq_s: float


class PricedPass(NamedTuple):
    """One forward pass of a drafter (`costmodels.models.drafters.Pass`), with its cost."""

    cost: StepCost
    tokens_per_seq: int
    logits_per_seq: int
    times: int
    reads_prompts: bool
    ranks: Layout | None
    """Data-parallel ranks, each of which drafts for its own sequences; None: there is one, or
    the cost deals sequences out itself."""
    clips: tuple[int, ...]
    """The places of its clips among the target's."""

    def shape(self, step: StepShape, finishing: int) -> StepShape:
        """Return the pass's shape in a step in which ``finishing`` prompts end and then draft."""
        if not step.prefill_tokens and self.tokens_per_seq and not step.clipped:
            seqs = step.decode_seqs
            drafts = seqs * (self.tokens_per_seq - 1)
            logits = seqs * self.logits_per_seq
            speculated = (drafts,) if drafts else ()
            context = step.decode_context_tokens
            return StepShape(seqs, context, 0, 0, 0, 0, logits, (), (), speculated)
        chunks = (
            step.prefill_seqs,
            step.prefill_tokens,
            step.prefill_context_tokens,
            step.prefill_pairs,
        )
        seqs, context = step.decode_seqs, step.decode_context_tokens
        clipped: tuple[int, ...] = ()
        for place in self.clips:
            clipped += step.clipped[_SUMS * place : _SUMS * (place + 1)]
        if self.reads_prompts:
            logits = seqs * self.logits_per_seq + (finishing if self.logits_per_seq else 0)
        else:
            if finishing:
                read = step.prefill_context_tokens + step.prefill_tokens
                context += read * finishing // step.prefill_seqs
                seqs += finishing
            chunks, logits = (0, 0, 0, 0), seqs * self.logits_per_seq
        drafts = seqs * (self.tokens_per_seq - 1) if self.tokens_per_seq > 1 else 0
        if not self.tokens_per_seq:
            seqs = context = drafts = 0
        speculated = (drafts,) if drafts else ()
        return StepShape(seqs, context, *chunks, logits, clipped, (), speculated)

    @property
    def is_line(self) -> bool:
        """Whether its decodes are priced as a line in their contexts (`StepCost.line`)."""
        return self.ranks is None and self.cost.is_line

    def decodes_ns(self, step: StepShape, finishing: int) -> int:
        """Return the price of `shape` for a pass that is a line and reads no prompts."""
        seqs, context = step.decode_seqs, step.decode_context_tokens
        if finishing:
            read = step.prefill_context_tokens + step.prefill_tokens
            context += read * finishing // step.prefill_seqs
            seqs += finishing
        line = self.cost.line(seqs, seqs * self.logits_per_seq)
        assert line is not None
        return (line[0] + context * line[1] + HALF) >> FRACTION_BITS

    def own(self, shape: StepShape) -> StepShape:
        """Return one rank's part of a shape."""
        if self.ranks is None or not shape.num_tokens:
            return shape
        dealt = deal(shape, self.ranks, self.cost.limits)
        return dealt.shape._replace(logits=dealt.logits)

    def own_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Return one rank's part of many steps."""
        if self.ranks is None:
            return dict(columns)
        dealt = deal_columns(columns, self.ranks, self.cost.limits)
        return {**dealt.shape, "logits": dealt.logits.astype(np.float64)}


def pass_columns(one: PricedPass, columns: dict[str, Array], finishing: Array) -> dict[str, Array]:
    """Return the columns of `PricedPass.shape` for many steps."""
    own = {
        name: values
        for name, values in columns.items()
        if name not in ("draft_tokens", "accepted_tokens", "context_rise", "logits")
    }
    kept = {name for clip in one.cost.shard.model.clips for name in clip_columns(clip)}
    own = {name: values for name, values in own.items() if "_clipped_" not in name or name in kept}
    seqs, none = columns["decode_seqs"], np.zeros(len(finishing))
    if one.reads_prompts:
        own["logits"] = seqs * one.logits_per_seq + (finishing if one.logits_per_seq else none)
    else:
        read = columns["prefill_context_tokens"] + columns["prefill_tokens"]
        mean = read / np.maximum(columns["prefill_seqs"], 1)
        own["decode_context_tokens"] = columns["decode_context_tokens"] + mean * finishing
        own["decode_seqs"] = seqs + finishing
        own["logits"] = own["decode_seqs"] * one.logits_per_seq
        for name in own:
            if name.startswith("prefill_"):
                own[name] = none
    own["draft_tokens"] = own["decode_seqs"] * max(one.tokens_per_seq - 1, 0)
    if not one.tokens_per_seq:
        own = {
            name: none if name.startswith(("decode", "draft")) else values
            for name, values in own.items()
        }
    return own
