"""Compiles (model, GPU, layout, engine) into a step cost: table look-ups and a few products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels.engines.attention_backends import AttentionBackend
from costmodels.engines.profile import EngineProfile, load_profile, quantile
from costmodels.hardware.efficiency import Efficiency, load_efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard, shard
from costmodels.models.spec import ModelSpec
from costmodels.operators.attention import CurvePrices, curve_prices
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.shared_prefix import SharedPrefixRates
from costmodels.operators.sources import OperatorSources
from costmodels.operators.step_tables import ClipPrices, StepTables, build_tables, clip_prices
from costmodels.steps.explain import OperatorRow, account_evidence, describe_step, step_sources
from costmodels.steps.step_split import split_steps
from costmodels.work import FRACTION_BITS, HALF
from sim.clock import NS_PER_S, to_ns
from sim.errors import ScenarioError
from sim.evidence import Source
from sim.protocols import DecodeRun, Rises, StepPrice
from sim.shape import StepShape, risen
from sim.throttle import PowerThrottle

_FREE = StepPrice(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineStepCost:
    """A `sim.protocols.StepCost` from each operator's roofline; built by `compile_step_cost`.

    The tables hold nanoseconds in fixed point with `FRACTION_BITS` fractional bits: a price is
    exact integer arithmetic, rounded once, so that each further step of a run costs one shift.
    """

    kernels: KernelTimes
    profile: EngineProfile
    graph_sizes: tuple[int, ...]
    tables: StepTables
    throttle: PowerThrottle | None
    token_fixed_ns: list[int]
    token_compute_ns: list[int]
    """Compute-bound part of ``token_fixed_ns``, in whole nanoseconds."""
    logit_fixed_ns: list[int]
    decode_token_fixed_ns: list[int]
    prefill_pair_fixed_ns: int
    prefill_tile_fixed_ns: int
    prefill_prefix_fixed_ns: int
    prefill_token_fixed_ns: int
    prefill_pair_read_fixed_ns: int
    curves: CurvePrices | None
    """Decode attention priced from measured tables; None: it is linear in the contexts."""
    clips: ClipPrices | None
    """Clipped contexts and recurrent states; None for full attention alone."""
    shared: SharedPrefixRates | None
    """Prefixes that a kernel reads once for several sequences."""
    schedule_table_ns: list[int]
    """``[max_num_seqs + 1]``, by running requests; ``update_table_ns``: by sequences in the
    step."""
    update_table_ns: list[int]
    seq_tokens: int
    tokens_per_seq: int
    """Tokens that each decoding sequence computes: its own, and drafts to verify."""
    largest_graph: int
    full_graph_ns: tuple[int, int, int]
    """Launch delay, launch and tail of a decode-only step in one full CUDA graph. The next three
    fields have the same of other steps: decode-only without a graph, with prefill in piecewise
    graphs, and with prefill without graphs."""
    eager_decode_ns: tuple[int, int, int]
    piecewise_ns: tuple[int, int, int]
    eager_ns: tuple[int, int, int]
    eager_spread: tuple[float, ...]

    @property
    def shard(self) -> RankShard:
        """The part of the model on one rank."""
        return self.kernels.shard

    @property
    def gpu(self) -> GpuSpec:
        """The device of each rank."""
        return self.kernels.gpu

    @property
    def efficiency(self) -> Efficiency:
        """The shares of the device's peaks that kernels reach."""
        return self.kernels.efficiency

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape; ``draw`` as in `sim.protocols.StepCost.price`.

        Raises `ScenarioError` beyond the compiled limits.
        """
        decodes, context, chunks, prefill_tokens, prefix, pairs, logits, clipped, shared, *_ = shape
        tokens = self.tokens_per_seq * decodes + prefill_tokens
        if not tokens:
            return _FREE
        try:
            fixed_ns = self.token_fixed_ns[tokens] + self.logit_fixed_ns[logits] + HALF
        except IndexError:
            raise self._beyond(tokens, logits) from None
        fixed_ns += (context + self.seq_tokens * decodes) * self.decode_token_fixed_ns[decodes]
        if self.curves is not None:
            fixed_ns += self.curves.at(decodes, context)
        if self.clips is not None:
            fixed_ns += self.clips.of_decodes(decodes, clipped)
        if shared:
            fixed_ns += self._shared_fixed_ns(shape)
        in_graph = tokens <= self.largest_graph
        if not prefill_tokens:
            host = self.full_graph_ns if in_graph else self.eager_decode_ns
            if shared and in_graph and self.shared is not None and self.shared.cascades(shape):
                host = self.piecewise_ns  # vLLM captures no full graph with cascade attention
            return StepPrice(fixed_ns >> FRACTION_BITS, *host)
        kv_tokens = prefix + prefill_tokens
        attention_ns = pairs * self.prefill_pair_fixed_ns + kv_tokens * self.prefill_tile_fixed_ns
        attention_ns += prefix * self.prefill_prefix_fixed_ns
        memory_ns = kv_tokens * self.prefill_token_fixed_ns
        memory_ns += pairs * self.prefill_pair_read_fixed_ns
        if self.clips is not None:
            more_ns = self.clips.of_chunks(chunks, prefill_tokens, clipped, prefix, pairs)
            attention_ns, memory_ns = attention_ns + more_ns[0], memory_ns + more_ns[1]
        compute_ns = self.token_compute_ns[tokens] + (attention_ns >> FRACTION_BITS)
        if memory_ns > attention_ns:
            compute_ns, attention_ns = self.token_compute_ns[tokens], memory_ns
        gpu_ns = (fixed_ns + attention_ns) >> FRACTION_BITS
        delay_ns, launch_ns, tail_ns = self.piecewise_ns if in_graph else self.eager_ns
        if draw is not None:
            spread = self.profile.piecewise_spread if in_graph else self.eager_spread
            launch_ns = round(launch_ns * quantile(spread, draw))
        return StepPrice(gpu_ns, delay_ns, launch_ns, tail_ns, compute_ns)

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps in which each sequence's context grows by one token
        per step."""
        decodes = shape.decode_seqs
        first = self.price(shape)
        if not decodes:
            return DecodeRun(first, [0] * steps, 0)
        tokens, read = self.tokens_per_seq * decodes, self._read_tokens(shape)
        start = self.token_fixed_ns[tokens] + self.logit_fixed_ns[shape.logits] + HALF
        start += read * self.decode_token_fixed_ns[decodes]
        growth = decodes * self.decode_token_fixed_ns[decodes]
        if self.clips is not None:
            start += self.clips.of_decodes(decodes, shape.clipped)
            growth += self.clips.growth(decodes, shape.clipped)
        if shape.shared:
            start += self._shared_fixed_ns(shape)
        if self.curves is not None:
            curved = self.curves.run(decodes, shape.decode_context_tokens, steps)
            gpu_ns = [(start + i * growth + c) >> FRACTION_BITS for i, c in enumerate(curved)]
            return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))
        if not growth:
            return DecodeRun(first, [first.gpu_ns * i for i in range(1, steps + 1)], first.gpu_ns)
        fixed_ns = range(start, start + steps * growth, growth)
        gpu_ns = [fixed >> FRACTION_BITS for fixed in fixed_ns]
        return DecodeRun(first, list(accumulate(gpu_ns)), first.gpu_ns)

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price decode-only steps whose contexts grow unevenly; see `sim.protocols.RoundCost`."""
        decodes, first = shape.decode_seqs, self.price(shape)
        if self.curves is not None or not decodes:
            gpu_ns = [self.price(step).gpu_ns for step in risen_steps(shape, rises)]
            return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))
        tokens = self.tokens_per_seq * decodes
        start = self.token_fixed_ns[tokens] + self.logit_fixed_ns[shape.logits] + HALF
        a_token = self.decode_token_fixed_ns[decodes]
        start += self._read_tokens(shape) * a_token
        if self.clips is None:
            gpu_ns = [(start + risen * a_token) >> FRACTION_BITS for risen in rises.context]
        else:
            start += self.clips.of_decodes(decodes, shape.clipped)
            more = self.clips.of_rises(decodes, rises.clips, len(rises.context))
            gpu_ns = [
                (start + risen * a_token + clipped) >> FRACTION_BITS
                for risen, clipped in zip(rises.context, more, strict=True)
            ]
        return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))

    def line(self, seqs: int, logits: int) -> tuple[int, int] | None:
        """Return the price of steps of ``seqs`` decodes as a line in the sum of their contexts.

        The two numbers are the price at context 0 and the price per token, in fixed point. None if
        the price is not linear in that sum.
        """
        if self.curves is not None or self.clips is not None:
            return None
        a_token = self.decode_token_fixed_ns[seqs]
        start = self.token_fixed_ns[self.tokens_per_seq * seqs] + self.logit_fixed_ns[logits]
        return start + self.seq_tokens * seqs * a_token, a_token

    def _read_tokens(self, shape: StepShape) -> int:
        return shape.decode_context_tokens + self.seq_tokens * shape.decode_seqs

    def _shared_fixed_ns(self, shape: StepShape) -> int:
        """Return the time to read shared prefixes once, less the time to read them once per
        sequence."""
        if self.shared is None or not self.shared.is_used(shape):
            return 0
        alone_ns = shape.shared[0] * self.decode_token_fixed_ns[shape.decode_seqs]
        return _fixed_ns(self.shared.work_s(shape) + self.shared.fixed_s) - alone_ns

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one scheduler call."""
        return self.schedule_table_ns[running]

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to apply a step's outputs and to run the loop around it."""
        return self.update_table_ns[seqs]

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """Split the GPU seconds of many steps by account; see `step_split.split_steps`."""
        return split_steps(self.tables, columns)

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> RooflineStepCost:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``,
        for error bands."""

        def on_gpu(times: list[int]) -> list[int]:
            return [round(time * gpu) for time in times]

        def on_host(times: tuple[int, int, int]) -> tuple[int, int, int]:
            delay_ns, launch_ns, tail_ns = (round(time * host) for time in times)
            return delay_ns, launch_ns, tail_ns

        return replace(
            self,
            token_fixed_ns=on_gpu(self.token_fixed_ns),
            token_compute_ns=on_gpu(self.token_compute_ns),
            logit_fixed_ns=on_gpu(self.logit_fixed_ns),
            decode_token_fixed_ns=on_gpu(self.decode_token_fixed_ns),
            prefill_pair_fixed_ns=round(self.prefill_pair_fixed_ns * gpu),
            prefill_tile_fixed_ns=round(self.prefill_tile_fixed_ns * gpu),
            prefill_prefix_fixed_ns=round(self.prefill_prefix_fixed_ns * gpu),
            prefill_token_fixed_ns=round(self.prefill_token_fixed_ns * gpu),
            prefill_pair_read_fixed_ns=round(self.prefill_pair_read_fixed_ns * gpu),
            curves=None if self.curves is None else self.curves.slower(gpu),
            clips=None if self.clips is None else self.clips.slower(gpu),
            shared=None if self.shared is None else self.shared.slower(gpu),
            schedule_table_ns=[round(time * host) for time in self.schedule_table_ns],
            update_table_ns=[round(time * host) for time in self.update_table_ns],
            full_graph_ns=on_host(self.full_graph_ns),
            eager_decode_ns=on_host(self.eager_decode_ns),
            piecewise_ns=on_host(self.piecewise_ns),
            eager_ns=on_host(self.eager_ns),
        )

    def evidence(self) -> dict[str, str]:
        """Return the evidence label of each GPU time account."""
        return account_evidence(self.kernels)

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        return step_sources(self.kernels, self.profile)

    def describe(self, shape: StepShape) -> list[OperatorRow]:
        """Return the work and time of each operator in a step of this shape, for reports."""
        return describe_step(self.kernels, self.graph_sizes, shape, self.tokens_per_seq)

    def _beyond(self, tokens: int, logits: int) -> ScenarioError:
        return ScenarioError(
            f"a step of {tokens} tokens and {logits} sampling sequences is outside the compiled "
            f"range: max_num_batched_tokens {len(self.token_fixed_ns) - 1}, "
            f"max_num_seqs {len(self.logit_fixed_ns) - 1}"
        )


def compile_step_cost(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    profile: EngineProfile | None = None,
    efficiency: Efficiency | None = None,
    operators: OperatorSources | None = None,
    equal_contexts: bool = False,
    layout: Layout | None = None,
    backend: AttentionBackend | None = None,
    shared_prefix_attention: str = "none",
    tokens_per_seq: int = 1,
) -> RooflineStepCost:
    """Tabulate a step's cost for every batch up to the two limits.

    ``profile`` defaults to the built-in vLLM profile, ``efficiency`` to the constants on file for
    the GPU; ``operators`` replaces ``efficiency`` per family of operators, and may have measured
    tables. ``equal_contexts`` is for benchmarks whose sequences are all of one length: these fill a
    device more evenly. ``layout`` replaces ``tensor_parallel_size``; several data-parallel ranks or
    stages are put together by `group_cost`. ``backend`` gives attention kernels other than those
    that ``efficiency`` was fitted to. ``shared_prefix_attention`` is the kernel that reads shared
    prefixes once, or ``none``. ``tokens_per_seq`` is the number of tokens that each decoding
    sequence computes, drafts to verify included. Raises `ScenarioError` if the limits are not
    positive, a step has room for fewer tokens than sequences, or the model does not divide over the
    ranks.
    """
    if not 1 <= max_num_seqs <= max_num_batched_tokens:
        raise ScenarioError(
            f"max_num_seqs {max_num_seqs} must be at least 1 and at most max_num_batched_tokens "
            f"{max_num_batched_tokens}: every running sequence needs a token in the step"
        )
    profile = profile or load_profile()
    efficiency = operators.efficiency if operators else efficiency or load_efficiency(gpu)
    kernels = KernelTimes(
        shard=shard(model, layout or tensor_parallel_size),
        gpu=gpu,
        efficiency=backend.efficiency if backend else efficiency,
        tables=operators.tables if operators else None,
        # A backend's constants take precedence over those of all families.
        constants=operators.constants if operators and not backend else {},
        backend=backend,
        shared_prefix_attention=shared_prefix_attention,
        between_passes_s=_between_passes_s(profile, operators),
    )
    graph_sizes = profile.graphs_for(max_num_seqs * tokens_per_seq)
    tables = build_tables(
        kernels,
        graph_sizes=graph_sizes,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        equal_contexts=equal_contexts,
        tokens_per_seq=tokens_per_seq,
    )
    attention = tables.attention
    whole_s = attention.decode_token_s.get(None, np.zeros(max_num_seqs + 1))
    pair_s = attention.chunk.pair_s.get(None, 0.0)
    eager_launch_s = profile.eager_launch_s(model)
    other_delay_s, tail_s = profile.other_delay_s, profile.prefill_tail_s
    return RooflineStepCost(
        kernels=kernels,
        profile=profile,
        graph_sizes=graph_sizes,
        tables=tables,
        throttle=efficiency.throttle,
        token_fixed_ns=[_fixed_ns(seconds) for seconds in tables.token_seconds().tolist()],
        token_compute_ns=[to_ns(seconds) for seconds in tables.compute_seconds().tolist()],
        logit_fixed_ns=[_fixed_ns(seconds) for seconds in tables.logit_seconds().tolist()],
        decode_token_fixed_ns=[_fixed_ns(seconds) for seconds in whole_s.tolist()],
        prefill_pair_fixed_ns=_fixed_ns(pair_s),
        prefill_tile_fixed_ns=_fixed_ns(pair_s * attention.tile_tokens),
        prefill_prefix_fixed_ns=_fixed_ns(attention.chunk.prefix_s),
        prefill_token_fixed_ns=_fixed_ns(attention.chunk.read_s.get(None, 0.0)),
        prefill_pair_read_fixed_ns=_fixed_ns(attention.chunk.pair_read_s),
        curves=curve_prices(attention.curves, _fixed_ns),
        clips=clip_prices(attention, _fixed_ns),
        shared=attention.shared,
        schedule_table_ns=[
            to_ns(profile.schedule_base_s + profile.schedule_per_running_s * running)
            for running in range(max_num_seqs + 1)
        ],
        update_table_ns=[
            to_ns(profile.driver_s + profile.update_base_s + profile.update_per_seq_s * seqs)
            for seqs in range(max_num_seqs + 1)
        ],
        seq_tokens=attention.seq_tokens,
        tokens_per_seq=tokens_per_seq,
        largest_graph=graph_sizes[-1] if graph_sizes else 0,
        full_graph_ns=_host_ns(profile.full_graph_delay_s, profile.full_graph_launch_s, 0.0),
        eager_decode_ns=_host_ns(other_delay_s, eager_launch_s, 0.0),
        piecewise_ns=_host_ns(other_delay_s, profile.piecewise_launch_s(model), tail_s),
        eager_ns=_host_ns(other_delay_s, eager_launch_s, tail_s),
        eager_spread=profile.eager_moe_spread if model.num_moe_layers else profile.eager_spread,
    )


def _between_passes_s(profile: EngineProfile, operators: OperatorSources | None) -> float:
    """Return the engine's own GPU time between passes if its small kernels are measured, else 0.

    Fitted small kernels include it in their fixed time.
    """
    tables = operators.tables if operators else None
    is_measured = tables is not None and tables.lookups.get("elementwise")
    return profile.between_passes_s if is_measured else 0.0


def risen_steps(shape: StepShape, rises: Rises) -> Iterator[StepShape]:
    """Yield the shape of each step of a run, the first of which has this shape."""
    for step, context in enumerate(rises.context):
        yield risen(shape, context, tuple(clip[step] for clip in rises.clips))


def _fixed_ns(seconds: float) -> int:
    return round(seconds * NS_PER_S * (1 << FRACTION_BITS))


def _host_ns(delay_s: float, launch_s: float, tail_s: float) -> tuple[int, int, int]:
    return to_ns(delay_s), to_ns(launch_s), to_ns(tail_s)
