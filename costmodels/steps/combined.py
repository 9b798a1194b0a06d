"""Integer prices of what is more than one rank's kernels: terms beside them, ranks and stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, Self

from costmodels.layouts.dealing import prompt_share
from costmodels.steps.compiled import CompiledPrices, risen_steps, summed_run
from costmodels.steps.describe import StepRow
from costmodels.steps.replica import Replica
from costmodels.work import Array
from sim.evidence import Source
from sim.protocols import DecodeRun, Rises, StepPrice
from sim.shape import StepShape, grown


class StepTerm(Protocol):
    """Time of a step beside a rank's kernels: transfers and exchanges that they do not hide."""

    def beside_ns(self, shape: StepShape, kernels_ns: int) -> int:
        """Return the exposed time of a step whose kernels take ``kernels_ns``."""
        ...

    def beside_s(self, columns: Mapping[str, Array], kernels_s: Array) -> dict[str, Array]:
        """Return the exposed seconds of ``n`` steps by account: ``[n]`` each."""
        ...

    def rows(self, shape: StepShape, kernels_ns: int) -> list[StepRow]:
        """Return the term's rows among a step's operators."""
        ...

    def evidence(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of accounts, given those of the kernels."""
        ...

    def sources(self) -> list[Source]:
        """Return the numbers that the term depends on."""
        ...

    def slower(self, factor: float) -> Self:
        """Return a copy with all times multiplied by ``factor``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedPrices:
    """The prices of a replica's steps, with the methods of `CompiledPrices` that engines call."""

    compiled: CompiledPrices
    terms: tuple[StepTerm, ...]
    replica: Replica | None
    prompt_ranks: int
    """Ranks that share a prompt's tokens."""

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape; see `CompiledPrices.price`."""
        if self.replica is None:
            return self._rank_price(shape, draw)
        if not shape.num_tokens:
            return StepPrice(0)
        dealt = self.replica.deal(shape)
        return self.replica.price(self._rank_price(dealt.shape, draw), dealt)

    def _rank_price(self, shape: StepShape, draw: float | None) -> StepPrice:
        kernels_ns, *rest = self.compiled.price(prompt_share(shape, self.prompt_ranks), draw)
        return StepPrice(self._rank_ns(shape, kernels_ns), *rest)

    def _rank_ns(self, shape: StepShape, kernels_ns: int) -> int:
        rank_ns = kernels_ns
        for term in self.terms:
            rank_ns += term.beside_ns(shape, kernels_ns)
        return rank_ns

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps in which each sequence's context grows by one token
        per step."""
        first, part = self.price(shape), shape
        if not shape.decode_seqs:
            return DecodeRun(first, [0] * steps, 0)
        if self.replica is not None:
            if shape.clipped:  # a rank's part of clipped sums does not grow by whole tokens
                each = [self.price(grown(shape, step)).gpu_ns for step in range(steps)]
                return summed_run(first, each)
            dealt = self.replica.deal(shape)
            part = dealt.shape
        kernels = self.compiled.price_decodes(part, steps).gpu_cumulative_ns
        gpu_ns = [after - before for before, after in pairwise((0, *kernels))]
        if self.terms:
            each_ns = enumerate(gpu_ns)
            gpu_ns = [self._rank_ns(grown(part, step), ns) for step, ns in each_ns]
        if self.replica is not None:
            gpu_ns = [self.replica.step_ns(ns, dealt) for ns in gpu_ns]
        return summed_run(first, gpu_ns)

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price decode-only steps whose contexts grow unevenly; see `sim.protocols.RoundCost`."""
        gpu_ns = [self.price(step).gpu_ns for step in risen_steps(shape, rises)]
        return summed_run(self.price(shape), gpu_ns)

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one step's scheduler calls on a rank: one call per
        micro-batch."""
        ranks, stages = self._ways
        return stages * self.compiled.schedule_ns(-(-running // ranks))

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to apply a step's outputs and to run the loop around it."""
        ranks, stages = self._ways
        return stages * self.compiled.update_ns(-(-seqs // (ranks * stages)))

    @property
    def _ways(self) -> tuple[int, int]:
        """Data-parallel ranks and stages."""
        if self.replica is None:
            return 1, 1
        layout = self.replica.layout
        return layout.data_parallel_size, layout.pipeline_parallel_size
