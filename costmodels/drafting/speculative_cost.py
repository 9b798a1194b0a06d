"""Step cost of an engine that speculates: the target verifies, then the drafter drafts.

The target verifies a step's drafts as additional tokens of each sequence: matrices see more rows,
experts more tokens, attention reads a context once for several queries. Then the drafter makes its
passes on the same GPUs. Its launches take host time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import sub
from typing import NamedTuple

import numpy as np

from costmodels.drafting.passes import DraftHost, PricedPass, pass_columns
from costmodels.engines.profile import EngineProfile
from costmodels.operators.kernel_times import KernelTimes
from costmodels.steps.bounds import StepBounds, no_bounds
from costmodels.steps.cost import StepCost
from costmodels.steps.describe import StepRow
from costmodels.work import FRACTION_BITS, HALF, Array
from sim import accounts
from sim.clock import NS_PER_S, to_ns
from sim.evidence import Evidence, Source, weakest
from sim.protocols import DecodeRun, Rises, StepPrice
from sim.shape import StepShape
from sim.throttle import PowerThrottle


class _Line(NamedTuple):
    """Decode-only steps whose GPU time is a line in their contexts, in fixed point."""

    start: int
    a_token: int
    host: tuple[int, int, int]
    """Launch delay, launch and tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeStepCost:
    """A `costmodels.steps.cost.PoolCost`; compiled by `costmodels.drafting.speculative_build`."""

    targets: Mapping[int, StepCost]
    """Cost of the target's steps, by drafts per sequence that they verify."""
    passes: Mapping[int, tuple[PricedPass, ...]]
    """The drafter's passes, by drafts per sequence."""
    drafts_by_seqs: tuple[tuple[int, int], ...]
    host: DraftHost
    host_evidence: Evidence
    acceptance_evidence: Evidence
    lines: dict[tuple[int, int], _Line | None] = field(default_factory=dict, init=False)
    """Cached lines of decode-only steps, by sequences and drafts per sequence."""

    @property
    def plain(self) -> StepCost:
        """The cost of the target's steps without drafts."""
        return self.targets[0]

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape; see `StepCost.price`."""
        if not shape.num_tokens:
            return StepPrice(0)
        if not shape.prefill_tokens and not shape.clipped:
            line = self._line(shape)
            if line is not None:
                gpu_ns = (line.start + shape.decode_context_tokens * line.a_token) >> FRACTION_BITS
                return StepPrice(gpu_ns, *line.host)
        drafts, finishing = self._drafts(shape)
        price = self.targets[drafts if shape.decode_seqs else 0].price(shape, draw)
        gpu_ns, compute_ns, launches = price.gpu_ns, price.compute_ns, 0
        gap_ns = self._gap_ns
        for one in self.passes[drafts]:
            if one.is_line and not one.reads_prompts:
                if not (shape.decode_seqs or finishing):
                    continue
                gpu_ns += one.times * (one.decodes_ns(shape, finishing) + gap_ns)
                launches += one.times
                continue
            own = one.own(one.shape(shape, finishing))
            if not (own.decode_seqs or own.prefill_tokens):
                continue
            draft = one.cost.price(own)
            gpu_ns += one.times * (draft.gpu_ns + gap_ns)
            compute_ns += one.times * draft.compute_ns
            launches += one.times
        launch_ns = price.launch_ns + launches * self._launch_ns
        return StepPrice(gpu_ns, price.launch_delay_ns, launch_ns, price.tail_ns, compute_ns)

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price decode-only steps whose contexts grow unevenly; see `sim.protocols.RoundCost`."""
        if not shape.decode_seqs:
            return DecodeRun(self.price(shape), [0] * len(rises.context), 0)
        line = None if shape.clipped else self._line(shape)
        if line is not None:
            a_token = line.a_token
            start = line.start + shape.decode_context_tokens * a_token
            gpu_ns = [(start + risen * a_token) >> FRACTION_BITS for risen in rises.context]
            first = StepPrice(gpu_ns[0], *line.host)
            return DecodeRun(first, list(accumulate(gpu_ns)), gpu_ns[0])
        verified = self._verified(shape)
        run = self.targets[verified].price_rounds(shape, rises)
        cumulative, gaps, launches = run.gpu_cumulative_ns, 0, 0
        for one in self.passes[verified]:
            part = one.shape(shape, 0)
            own = one.own(part)
            if not own.num_tokens:
                continue
            risen = Rises(rises.context, [rises.clips[place] for place in one.clips])
            if one.ranks is None:
                of_draft = one.cost.price_rounds(own, risen).gpu_cumulative_ns
            else:  # a rank's part of contexts does not grow by whole tokens
                of_draft = list(accumulate(self._dealt_run(one, part, risen)))
            times = one.times
            cumulative = [a + times * b for a, b in zip(cumulative, of_draft, strict=True)]
            gaps, launches = gaps + times * self._gap_ns, launches + times
        if gaps:
            cumulative = [ns + gaps * step for step, ns in enumerate(cumulative, 1)]
        shortest = min(map(sub, cumulative, chain((0,), cumulative)))
        first = run.first._replace(
            gpu_ns=cumulative[0], launch_ns=run.first.launch_ns + launches * self._launch_ns
        )
        return DecodeRun(first, cumulative, shortest)

    def _line(self, shape: StepShape) -> _Line | None:
        """Return decode-only steps with these sequences and drafts as a line in their contexts.

        None if some part of them is not linear.
        """
        seqs, verified = shape.decode_seqs, self._verified(shape)
        key = seqs, verified
        if key not in self.lines:
            self.lines[key] = self._new_line(shape, verified)
        return self.lines[key]

    def _new_line(self, shape: StepShape, verified: int) -> _Line | None:
        host = self.targets[verified].price(shape)
        parts = [(1, self.targets[verified], shape)]
        gaps = launches = 0
        for one in self.passes[verified]:
            own = one.shape(shape, 0)
            if one.ranks is not None:
                return None
            if own.num_tokens:
                parts.append((one.times, one.cost, own))
                gaps, launches = gaps + one.times * self._gap_ns, launches + one.times
        start, a_token = (gaps << FRACTION_BITS) + HALF, 0
        for times, cost, own in parts:
            found = cost.line(own.decode_seqs, own.logits)
            if found is None:
                return None
            start, a_token = start + times * found[0], a_token + times * found[1]
        launch_ns = host.launch_ns + launches * self._launch_ns
        return _Line(start, a_token, (host.launch_delay_ns, launch_ns, host.tail_ns))

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price steps without drafts in which each sequence's context grows by one token per
        step."""
        return self.plain.price_decodes(shape, steps)

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one scheduler call."""
        return self.plain.schedule_ns(running)

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to apply a step's outputs, and to look drafts up if the host does
        that."""
        update_ns = self.plain.update_ns(seqs)
        if not seqs or not self.host.per_seq_s:
            return update_ns
        return update_ns + to_ns(self.host.seqs_base_s + self.host.per_seq_s * seqs)

    def split(self, columns: Mapping[str, Array], /) -> dict[str, Array]:
        """Split the GPU seconds of many steps by account.

        The time that verification adds to the step without drafts is split in proportion: the
        accepted share is posted like the target's work, the rejected share as waste. The drafter's
        work has an account of its own.
        """
        seqs, verified = columns["decode_seqs"], columns["draft_tokens"]
        finishing = columns["logits"] - seqs - verified
        each = np.rint(verified / np.maximum(seqs, 1)).astype(np.int64)
        drafted = np.where(seqs > 0, each, self._drafts_of(finishing))
        seconds = {account: np.zeros(len(seqs)) for account in accounts.GPU_ACCOUNTS}
        plain = {**columns, "logits": columns["logits"] - verified}
        plain["draft_tokens"] = np.zeros(len(seqs))
        for drafts in np.unique(each).tolist():
            rows = each == drafts
            base = self.plain.split(_chosen(plain, rows))
            if not drafts:
                _add(seconds, base, rows)
                continue
            whole = self.targets[drafts].split(_chosen(columns, rows))
            accepted = columns["accepted_tokens"][rows] / np.maximum(verified[rows], 1)
            extra = sum((whole[name] - base[name] for name in whole), np.zeros(len(accepted)))
            # If a table has more tokens slightly faster, nothing was wasted.
            accepted = np.where(extra > 0, accepted, 1.0)
            for account, values in whole.items():
                added = values - base[account]
                seconds[account][rows] += base[account] + added * accepted
            seconds[accounts.SPECULATION_WASTE][rows] += extra * (1 - accepted)
        for drafts in np.unique(drafted).tolist():
            rows = drafted == drafts
            of_draft = self._draft_s(_chosen(columns, rows), finishing[rows], drafts)
            seconds[accounts.SPECULATION_DRAFT][rows] += of_draft
        return seconds

    def _draft_s(self, columns: dict[str, Array], finishing: Array, drafts: int) -> Array:
        total = np.zeros(len(finishing))
        for one in self.passes[drafts]:
            own = pass_columns(one, columns, finishing)
            tokens = own["decode_seqs"] + own["prefill_tokens"]
            split = one.cost.split(one.own_columns(own))
            of_pass = sum(split.values(), np.where(tokens > 0, self._gap_ns / NS_PER_S, 0.0))
            total += one.times * np.where(tokens > 0, of_pass, 0.0)
        return total

    def _dealt_run(self, one: PricedPass, part: StepShape, rises: Rises) -> list[int]:
        found = []
        for context in rises.context:
            total = part.decode_context_tokens + context
            own = one.own(part._replace(decode_context_tokens=total))
            found.append(one.cost.price(own).gpu_ns)
        return found

    def _verified(self, shape: StepShape) -> int:
        """Return the drafts per sequence that a step verifies."""
        return shape.draft_tokens // shape.decode_seqs if shape.decode_seqs else 0

    def _drafts(self, shape: StepShape) -> tuple[int, int]:
        """Return the drafts per sequence that a step makes, and the number of prompts that end in
        it.

        A step drafts the number that it verifies; if no sequence decodes yet, the number for the
        sequences whose prompts end.
        """
        finishing = shape.logits - shape.decode_seqs - shape.draft_tokens
        if shape.decode_seqs:
            return self._verified(shape), finishing
        return self._of_seqs(finishing), finishing

    def _of_seqs(self, seqs: int) -> int:
        found = self.drafts_by_seqs[0][1]
        for least, drafts in self.drafts_by_seqs:
            if least <= seqs:
                found = drafts
        return found

    def _drafts_of(self, seqs: Array) -> Array:
        starts = np.array([least for least, _ in self.drafts_by_seqs], dtype=np.float64)
        drafts = np.array([number for _, number in self.drafts_by_seqs])
        found: Array = drafts[np.maximum(np.searchsorted(starts, seqs, side="right") - 1, 0)]
        return found

    @property
    def _gap_ns(self) -> int:
        return round(self.host.pass_gap_s * NS_PER_S)

    @property
    def _launch_ns(self) -> int:
        return round(self.host.pass_launch_s * NS_PER_S)

    @property
    def profile(self) -> EngineProfile:
        """The engine's host times."""
        return self.plain.profile

    @property
    def kernels(self) -> KernelTimes:
        """The prices of the target's kernels on one rank."""
        return self.plain.kernels

    def largest_graph(self, drafts: int = 0) -> int:
        """Return the tokens per rank of the largest CUDA graph of steps that verify ``drafts``
        per sequence."""
        return self.targets[drafts].largest_graph()

    def bounds(self, max_num_batched_tokens: int) -> StepBounds:
        """Return the bounds 0: how many tokens a step gives a sequence is drawn."""
        return no_bounds(max_num_batched_tokens)

    @property
    def throttle(self) -> PowerThrottle | None:
        """The device's power limit; None: no limit."""
        return self.plain.throttle

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> SpeculativeStepCost:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``."""
        own = self.host
        return replace(
            self,
            targets={n: cost.slower(gpu=gpu, host=host) for n, cost in self.targets.items()},
            passes={
                n: tuple(one._replace(cost=one.cost.slower(gpu=gpu, host=host)) for one in passes)
                for n, passes in self.passes.items()
            },
            host=DraftHost(
                own.pass_launch_s * host,
                own.pass_gap_s * gpu,
                own.seqs_base_s * host,
                own.per_seq_s * host,
            ),
        )

    def evidence(self) -> dict[str, str]:
        """Return the label of each GPU time account; decoding also depends on the acceptance
        rates."""
        found, accepted = self.plain.evidence(), self.acceptance_evidence.label
        for account in (accounts.DECODE_WEIGHT_READS, accounts.DECODE_STATE_READS):
            found[account] = weakest((found[account], accepted))
        wasted = weakest((found[accounts.DECODE_WEIGHT_READS], accepted))
        return found | {
            accounts.SPECULATION_WASTE: wasted,
            accounts.SPECULATION_DRAFT: weakest((wasted, self.host_evidence.label)),
        }

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        terms = zip(DraftHost._fields, self.host, strict=True)
        label, source = self.host_evidence.label, self.host_evidence.source
        return [
            *self.plain.sources(),
            *(Source(what=f"drafter {n}", value=v, label=label, source=source) for n, v in terms),
        ]

    def describe(self, shape: StepShape) -> list[StepRow]:
        """Return the work and time of the target's operators in a step of this shape, for
        reports."""
        return self.targets[self._verified(shape)].describe(shape)


def _chosen(columns: Mapping[str, Array], rows: np.ndarray) -> dict[str, Array]:
    return {name: values[rows] for name, values in columns.items()}


def _add(seconds: dict[str, Array], more: Mapping[str, Array], rows: np.ndarray) -> None:
    for account, values in more.items():
        seconds[account][rows] += values
