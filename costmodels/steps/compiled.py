"""The integer tables of the engine's path: a step's price by look-ups and a few products.

They are compiled from `prices.StepPrices` and hold nanoseconds in fixed point with `FRACTION_BITS`
fractional bits: a price is exact integer arithmetic, rounded once, so that each further step of a
run costs one shift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from costmodels.engines.launches import contexts_gathered, decodes_beside
from costmodels.engines.profile import EngineProfile, quantile
from costmodels.layouts.dealing import Limits
from costmodels.operators.attention import CurvePrices, curve_prices
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.shared_prefix import SharedPrefixRates
from costmodels.steps.clips import ClipPrices, clip_prices, fixed_table, to_fixed_ns, whole_ns
from costmodels.steps.prices import StepPrices
from costmodels.work import FRACTION_BITS, HALF, slowed
from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.protocols import DecodeRun, Rises, StepPrice
from sim.shape import StepShape, risen

_FREE = StepPrice(0)


_GPU_TIMES = (
    "token_fixed_ns",
    "token_compute_ns",
    "logit_fixed_ns",
    "decode_token_fixed_ns",
    "prefill_pair_fixed_ns",
    "prefill_tile_fixed_ns",
    "prefill_prefix_fixed_ns",
    "prefill_token_fixed_ns",
    "prefill_pair_read_fixed_ns",
    "mixed_token_fixed_ns",
    "curves",
    "clips",
    "shared",
)
_HOST_TIMES = (
    "schedule_table_ns",
    "update_table_ns",
    "full_graph_ns",
    "eager_decode_ns",
    "piecewise_ns",
    "eager_ns",
    "beside_launch_ns",
    "context_launch_ns",
)
HostTimes = tuple[int, int, int]
"""Launch delay, launch and tail of a step in nanoseconds, in the order of `StepPrice`. (A plain
tuple, because unpacking it is part of every price.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPrices:
    """One rank's prices in integers; built by `compile_prices`."""

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
    mixed_token_fixed_ns: int
    """Compute price per token of decodes' whole contexts in a step with prompts."""
    curves: CurvePrices | None
    """Decode attention priced from measured tables; None: it is linear in the contexts."""
    clips: ClipPrices | None
    """Clipped contexts and recurrent states; None for full attention alone."""
    shared: SharedPrefixRates | None
    """Prefixes that a kernel reads once for several sequences."""
    schedule_table_ns: list[int]
    """Host time of a scheduler call by running requests: ``[max_num_seqs + 1]``."""
    update_table_ns: list[int]
    """Host time to apply outputs by sequences in the step: ``[max_num_seqs + 1]``."""
    seq_tokens: int
    tokens_per_seq: int
    """Tokens that each decoding sequence computes: its own, and drafts to verify."""
    largest_graph: int
    """The largest CUDA graph, in tokens."""
    full_graph_ns: HostTimes
    """Host times of a decode-only step in one full CUDA graph. The next three fields have those of
    other steps: decode-only without a graph, with prefill in piecewise graphs, and with prefill
    without graphs."""
    eager_decode_ns: HostTimes
    piecewise_ns: HostTimes
    eager_ns: HostTimes
    beside_launch_ns: int
    """Launch time that decodes add to a step with prompts beyond the largest graph; the next:
    that prompts with cached context add."""
    context_launch_ns: int
    piecewise_spread: tuple[float, ...]
    """Quantiles of a launch's time over its mean; the next: without graphs."""
    eager_spread: tuple[float, ...]

    @property
    def limits(self) -> Limits:
        """The largest step that the tables hold."""
        return Limits(
            len(self.token_fixed_ns) - 1, len(self.logit_fixed_ns) - 1, self.largest_graph
        )

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape; ``draw`` as in `sim.protocols.StepCost.price`.

        Raises `ScenarioError` beyond the compiled limits.
        """
        decodes, context, chunks, prefilled, prefix, pairs, logits, clipped, shared, _, _ = shape
        tokens = self.tokens_per_seq * decodes + prefilled
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
        if not prefilled:
            host = self.full_graph_ns if in_graph else self.eager_decode_ns
            if shared and in_graph and self.shared is not None and self.shared.cascades(shape):
                host = self.piecewise_ns  # vLLM captures no full graph with cascade attention
            return StepPrice(fixed_ns >> FRACTION_BITS, *host)
        kv_tokens = prefix + prefilled
        attention_ns = pairs * self.prefill_pair_fixed_ns + kv_tokens * self.prefill_tile_fixed_ns
        attention_ns += (context + self.seq_tokens * decodes) * self.mixed_token_fixed_ns
        attention_ns += prefix * self.prefill_prefix_fixed_ns
        memory_ns = kv_tokens * self.prefill_token_fixed_ns
        memory_ns += pairs * self.prefill_pair_read_fixed_ns
        if self.clips is not None:
            more_ns = self.clips.of_chunks(chunks, prefilled, clipped, prefix, pairs)
            attention_ns, memory_ns = attention_ns + more_ns[0], memory_ns + more_ns[1]
            attention_ns += self.clips.of_mixed(decodes, clipped)
        compute_ns = self.token_compute_ns[tokens] + (attention_ns >> FRACTION_BITS)
        if memory_ns > attention_ns:
            compute_ns, attention_ns = self.token_compute_ns[tokens], memory_ns
        gpu_ns = (fixed_ns + attention_ns) >> FRACTION_BITS
        delay_ns, launch_ns, tail_ns = self.piecewise_ns if in_graph else self.eager_ns
        if not in_graph:
            launch_ns += self.beside_launch_ns if decodes else 0
            launch_ns += self.context_launch_ns if prefix else 0
        if draw is not None:
            spread = self.piecewise_spread if in_graph else self.eager_spread
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
            return summed_run(first, gpu_ns)
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
            return summed_run(first, gpu_ns)
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
        return summed_run(first, gpu_ns)

    @property
    def is_line(self) -> bool:
        """Whether the decodes of a step are priced as a line in the sum of their contexts."""
        return self.curves is None and self.clips is None

    def line(self, seqs: int, logits: int) -> tuple[int, int] | None:
        """Return the price of steps of ``seqs`` decodes as a line in the sum of their contexts.

        The two numbers are the price at context 0 and the price per token, in fixed point. None if
        the price is not linear in that sum.
        """
        if not self.is_line:
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
        return to_fixed_ns(self.shared.work_s(shape) + self.shared.fixed_s) - alone_ns

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one scheduler call."""
        return self.schedule_table_ns[running]

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to apply a step's outputs and to run the loop around it."""
        return self.update_table_ns[seqs]

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> CompiledPrices:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``."""
        return slowed(slowed(self, gpu, *_GPU_TIMES), host, *_HOST_TIMES)

    def _beyond(self, tokens: int, logits: int) -> ScenarioError:
        return ScenarioError(
            f"a step of {tokens} tokens and {logits} sampling sequences is outside the compiled "
            f"range: max_num_batched_tokens {len(self.token_fixed_ns) - 1}, "
            f"max_num_seqs {len(self.logit_fixed_ns) - 1}"
        )


def compile_prices(
    prices: StepPrices, profile: EngineProfile, kernels: KernelTimes, largest_graph: int
) -> CompiledPrices:
    """Tabulate ``prices``, which are of ``kernels``, and the host times of an engine's ``profile``
    in integers."""
    model, ranks = kernels.shard.model, kernels.shard.layout.tensor_parallel_size
    experts = kernels.chosen.experts.name if kernels.chosen.experts else ""
    attention, chunk = prices.attention, prices.attention.chunk
    seqs = range(attention.max_num_seqs + 1)
    whole_s = attention.decode_token_s.get(None, np.zeros(len(seqs)))
    pair_s = chunk.pair_s.get(None, 0.0)
    eager_launch_s = profile.eager_launch_s(model, experts, ranks)
    other_delay_s, tail_s = profile.other_delay_s, profile.prefill_tail_s
    in_pieces = profile.piecewise_graphs
    piecewise_s = profile.piecewise_launch_s(model) if in_pieces else eager_launch_s
    eager_spread = profile.eager_moe_spread if model.num_moe_layers else profile.eager_spread
    return CompiledPrices(
        token_fixed_ns=fixed_table(prices.token_seconds()),
        token_compute_ns=whole_ns(prices.compute_seconds()),
        logit_fixed_ns=fixed_table(prices.logit_seconds()),
        decode_token_fixed_ns=fixed_table(whole_s),
        prefill_pair_fixed_ns=to_fixed_ns(pair_s),
        prefill_tile_fixed_ns=to_fixed_ns(pair_s * attention.tile_tokens),
        prefill_prefix_fixed_ns=to_fixed_ns(chunk.prefix_s),
        prefill_token_fixed_ns=to_fixed_ns(chunk.read_s.get(None, 0.0)),
        prefill_pair_read_fixed_ns=to_fixed_ns(chunk.pair_read_s),
        mixed_token_fixed_ns=to_fixed_ns(attention.mixed_token_s.get(None, 0.0)),
        curves=curve_prices(attention.curves, to_fixed_ns),
        clips=clip_prices(attention),
        shared=attention.shared,
        schedule_table_ns=[
            to_ns(profile.schedule_base_s + profile.schedule_per_running_s * running)
            for running in seqs
        ],
        update_table_ns=[
            to_ns(profile.driver_s + profile.update_base_s + profile.update_per_seq_s * count)
            for count in seqs
        ],
        seq_tokens=attention.seq_tokens,
        tokens_per_seq=prices.tokens_per_seq,
        largest_graph=largest_graph,
        full_graph_ns=_host_ns(profile.full_graph_delay_s, profile.full_graph_launch_s, 0.0)
        if profile.full_graphs
        else _host_ns(other_delay_s, piecewise_s, 0.0),
        eager_decode_ns=_host_ns(other_delay_s, eager_launch_s, 0.0),
        piecewise_ns=_host_ns(other_delay_s, piecewise_s, tail_s),
        eager_ns=_host_ns(other_delay_s, eager_launch_s, tail_s),
        beside_launch_ns=to_ns(profile.launches_s(decodes_beside(model))),
        context_launch_ns=to_ns(profile.launches_s(contexts_gathered(model))),
        piecewise_spread=profile.piecewise_spread if in_pieces else eager_spread,
        eager_spread=eager_spread,
    )


def risen_steps(shape: StepShape, rises: Rises) -> Iterator[StepShape]:
    """Yield the shape of each step of a run, the first of which has this shape."""
    for step, context in enumerate(rises.context):
        yield risen(shape, context, tuple(clip[step] for clip in rises.clips))


def summed_run(first: StepPrice, gpu_ns: list[int]) -> DecodeRun:
    """Return the run of steps that take ``gpu_ns`` each."""
    return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))


def _host_ns(delay_s: float, launch_s: float, tail_s: float) -> HostTimes:
    return to_ns(delay_s), to_ns(launch_s), to_ns(tail_s)
