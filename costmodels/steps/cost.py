"""The step cost of a replica: one class, whatever its layout and whatever is off its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np

from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.dealing import (
    Dealt,
    Limits,
    deal_columns,
    prompt_columns,
    prompt_share,
)
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.operators.kernel_times import KernelTimes
from costmodels.steps.bounds import StepBounds, step_bounds
from costmodels.steps.combined import CombinedPrices, StepTerm
from costmodels.steps.compiled import CompiledPrices
from costmodels.steps.describe import (
    RowLabels,
    StepRow,
    first_step,
    group_row,
    posted_row,
    rank_rows,
    step_columns,
    with_shares,
)
from costmodels.steps.evidence import account_evidence, beyond_measured, step_sources
from costmodels.steps.prices import StepPrices, posted, summed
from costmodels.steps.replica import Replica
from costmodels.work import Array
from sim.evidence import Source
from sim.protocols import DecodeRun, Rises, RoundCost, StepPrice
from sim.shape import StepShape
from sim.throttle import PowerThrottle


class PriceStep(Protocol):
    """The type of `sim.protocols.StepCost.price`."""

    def __call__(self, shape: StepShape, draw: float | None = None, /) -> StepPrice: ...


class PoolCost(RoundCost, Protocol):
    """What tools ask of the step cost of a pool's engines, whether they speculate or not."""

    @property
    def kernels(self) -> KernelTimes:
        """The prices of the target's kernels on one rank."""
        ...

    @property
    def profile(self) -> EngineProfile:
        """The engine's host times."""
        ...

    @property
    def drafts_by_seqs(self) -> tuple[tuple[int, int], ...]:
        """Drafts per sequence by the least number of decoding sequences; empty without drafts."""
        ...

    def largest_graph(self, drafts: int = 0) -> int:
        """Return the tokens per rank of the largest CUDA graph of steps that verify ``drafts``
        per sequence."""
        ...

    def bounds(self, max_num_batched_tokens: int) -> StepBounds:
        """Return lower bounds on the GPU time of any step; the limit is the whole replica's."""
        ...

    def describe(self, shape: StepShape) -> list[StepRow]:
        """Return the work and time of each operator in a step of this shape, for reports."""
        ...

    def evidence(self) -> dict[str, str]:
        """Return the evidence label of each GPU time account."""
        ...

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        ...

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> Self:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``,
        for error bands."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A `sim.protocols.RoundCost` and a `PoolCost` without drafts; see `compile_step_cost`.

    A step's price is that of one rank's kernels, plus what the ``terms`` add beside them, and, if
    ranks or stages share the batch, put together by ``replica``.
    """

    kernels: KernelTimes
    profile: EngineProfile
    prices: StepPrices
    """Prices of a rank's operators, from which everything else is derived."""
    compiled: CompiledPrices
    """Integer tables of ``prices``, from which engines are given a step's time in ns."""
    throttle: PowerThrottle | None
    graph_sizes: tuple[int, ...]
    terms: tuple[StepTerm, ...] = ()
    replica: Replica | None = None
    """The ranks and stages that share a batch; None: one rank, or ranks that do all alike."""
    price: PriceStep = field(init=False, repr=False, compare=False)
    """`CompiledPrices.price`, or that of `CombinedPrices`; so are the next four."""
    price_decodes: Callable[[StepShape, int], DecodeRun] = field(
        init=False, repr=False, compare=False
    )
    price_rounds: Callable[[StepShape, Rises], DecodeRun] = field(
        init=False, repr=False, compare=False
    )
    schedule_ns: Callable[[int], int] = field(init=False, repr=False, compare=False)
    update_ns: Callable[[int], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Engines ask in every step: there is no call between them and the tables of a rank alone.
        priced: CompiledPrices | CombinedPrices = self.compiled
        if not self.is_compiled:
            priced = CombinedPrices(
                compiled=self.compiled,
                terms=self.terms,
                replica=self.replica,
                prompt_ranks=self.layout.prefill_context_parallel_size,
            )
        for name in ("price", "price_decodes", "price_rounds", "schedule_ns", "update_ns"):
            object.__setattr__(self, name, getattr(priced, name))

    @property
    def shard(self) -> RankShard:
        """The part of the model on one rank."""
        return self.kernels.shard

    @property
    def layout(self) -> Layout:
        """The ranks of the replica."""
        return self.kernels.shard.layout

    @property
    def gpu(self) -> GpuSpec:
        """The device of each rank."""
        return self.kernels.gpu

    @property
    def efficiency(self) -> Efficiency:
        """The shares of the device's peaks that kernels reach."""
        return self.kernels.efficiency

    @property
    def limits(self) -> Limits:
        """The limits of one rank and micro-batch."""
        return self.compiled.limits

    @property
    def drafts_by_seqs(self) -> tuple[tuple[int, int], ...]:
        """Empty: nothing is drafted."""
        return ()

    def largest_graph(self, drafts: int = 0) -> int:
        """Return the tokens per rank of the largest CUDA graph."""
        return self.compiled.largest_graph

    @property
    def is_compiled(self) -> bool:
        """Whether the integer tables of one rank are the whole price."""
        return self.replica is None and not self.terms

    @property
    def is_line(self) -> bool:
        """Whether `line` returns a line."""
        return self.is_compiled and self.compiled.is_line

    def line(self, seqs: int, logits: int) -> tuple[int, int] | None:
        """Return `CompiledPrices.line`; None if something is added to it."""
        return self.compiled.line(seqs, logits) if self.is_compiled else None

    def split(self, columns: Mapping[str, Array], /) -> dict[str, Array]:
        """Return the GPU seconds of ``n`` steps by account; see `sim.protocols.StepCost.split`."""
        if self.replica is None:
            return self._rank_split(columns)
        dealt = deal_columns(columns, self.layout, self.limits)
        return self.replica.split(self._rank_split(dealt.shape), dealt, self.prices)

    def _rank_split(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        own = prompt_columns(columns, self.layout.prefill_context_parallel_size)
        steps = len(own["decode_seqs"])
        seconds = summed(self.prices.of_steps(own), steps)
        kernels_s = sum(seconds.values(), np.zeros(steps)) if self.terms else np.zeros(steps)
        for term in self.terms:
            for account, beside_s in term.beside_s(columns, kernels_s).items():
                seconds[account] += beside_s
        return seconds

    def split_step(self, shape: StepShape) -> dict[str, float]:
        """Return the GPU seconds of one step by account."""
        return first_step(self.split(step_columns(shape, self.shard.model.clips)))

    def busiest(self, shape: StepShape) -> Dealt:
        """Return the part of a step that the busiest rank and micro-batch has."""
        if self.replica is not None:
            return self.replica.deal(shape)
        return Dealt(shape=shape, logits=shape.logits, mean_tokens=shape.num_tokens)

    def describe(self, shape: StepShape) -> list[StepRow]:
        """Return the work and time of each operator on the busiest rank for one micro-batch.

        The rows of the ``terms`` and those of experts that ranks share come last. For one rank,
        the seconds add up to the step's GPU time; for a pipeline, to the time of one micro-batch
        from the first stage to the last.
        """
        if not shape.num_tokens:
            return []
        dealt = self.busiest(shape)
        part = dealt.shape._replace(logits=dealt.logits)
        own = prompt_share(part, self.layout.prefill_context_parallel_size)
        labels = RowLabels(self.kernels, self._rank_evidence())
        rows = rank_rows(self.prices, own, labels)
        if self.terms:
            kernels_ns = self.compiled.price(own).gpu_ns
            kernels_s = np.array([sum(row.seconds for row in rows)])
            columns = step_columns(part, self.shard.model.clips)
        for term in self.terms:
            beside_s = first_step(term.beside_s(columns, kernels_s))
            beside = term.rows(part, kernels_ns)
            rows += [posted_row(row, beside_s, labels.by_account) for row in beside]
        if self.replica is not None:
            mean, none = np.array([dealt.mean_tokens]), np.zeros(1, np.int64)
            all_labels = RowLabels(self.kernels, self.evidence())
            is_decode = not dealt.shape.prefill_tokens
            shared = (posted(one, mean, none) for one in self.replica.group)
            rows += [group_row(one, all_labels, is_decode=is_decode) for one in shared]
        return with_shares(rows)

    def bounds(self, max_num_batched_tokens: int) -> StepBounds:
        """Return lower bounds on the GPU time of any step; the limit is the whole replica's."""
        group_ns = self.replica.group_ns if self.replica is not None else []
        return step_bounds(self.compiled, group_ns, self.layout, max_num_batched_tokens)

    def evidence(self) -> dict[str, str]:
        """Return the evidence label of each GPU time account: ``extrapolated`` at best if ranks
        or stages share the batch, as nothing was measured in such a layout."""
        labels = self._rank_evidence()
        return beyond_measured(labels, self.replica.links) if self.replica else labels

    def _rank_evidence(self) -> dict[str, str]:
        labels = account_evidence(self.kernels)
        for term in self.terms:
            labels = term.evidence(labels)
        return labels

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        found = step_sources(self.kernels, self.profile)
        for term in self.terms:
            found += term.sources()
        return [*found, *self.replica.network, *self.replica.links] if self.replica else found

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> StepCost:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``,
        for error bands. `split` keeps the times, of which only the shares count."""
        return replace(
            self,
            compiled=self.compiled.slower(gpu=gpu, host=host),
            terms=tuple(term.slower(gpu) for term in self.terms),
            replica=None if self.replica is None else self.replica.slower(gpu),
        )
