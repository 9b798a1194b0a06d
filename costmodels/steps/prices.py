"""A step's price as operators times time accounts, for any number of steps at once.

This is the one place that prices a step. The integer tables of the engine's path (`compiled`) are
made from it; splits by account, descriptions and evidence are readings of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.engines.profile import padded_sizes
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.operators.attention import AttentionRates
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import logit_operators, token_operators
from costmodels.work import EXCHANGES, Array, Operator
from sim import accounts
from sim.arrays import Int64

DECODE_ACCOUNT: Mapping[str, str] = {
    "gemm": accounts.DECODE_WEIGHT_READS,
    "grouped_gemm": accounts.DECODE_WEIGHT_READS,
    "attention": accounts.DECODE_STATE_READS,
    "elementwise": accounts.REMAINDER,
    "sampling": accounts.REMAINDER,
    **dict.fromkeys(EXCHANGES, accounts.COMMUNICATION),
}
"""The account of the decode part of an operator's work, by its kind. Its fixed time is launch,
unless it is a link's."""
PREFILL_ACCOUNTS = (accounts.PREFILL_COMPUTE, accounts.PREFILL_MEMORY)
"""The accounts of what prefills add: by the side of the roofline that binds."""
OVERLAPPED = ("dispatch", "combine")
"""Exchanges that one half of a batch makes while the other computes (enable_dbo)."""
DECODE_ATTENTION = "decode_attention"
SHARED_PREFIX = "shared_prefix_attention"
PREFILL_ATTENTION = "prefill_attention"


class OperatorPrices(NamedTuple):
    """The seconds of one operator in ``n`` steps; arrays are ``[n]``."""

    name: str
    by_account: dict[str, Array]
    """Seconds by account; they add up to the operator's time."""
    compute_bound: NDArray[np.bool_]
    kernel: OperatorSeconds | None = None
    """Prices of the operator at every count of tokens or logits; None for attention, which is
    priced by rates."""
    places: tuple[Int64, ...] = ()
    """Where in ``kernel`` the whole steps are, and their decodes alone."""

    @property
    def total_s(self) -> Array:
        """Seconds of the operator, all accounts together."""
        total: Array = np.sum(list(self.by_account.values()), axis=0)
        return total

    def sized(self) -> OperatorSeconds:
        """Return the prices at the steps' own sizes, ``[2 n]``: of whole steps, then of decodes."""
        assert self.kernel is not None
        return self.kernel.at(np.concatenate(self.places))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrices:
    """The prices of one rank's operators, from which any step is put together.

    Most operators depend on one count alone and are priced at every value of it. Attention is
    linear in the sums of a step, so it has rates.
    """

    by_tokens: tuple[OperatorSeconds, ...]
    """Arrays by new tokens, before padding to a graph: ``[max_num_batched_tokens + 1]``."""
    by_logits: tuple[OperatorSeconds, ...]
    """Arrays by logits: ``[max_num_seqs * tokens_per_seq + 1]``."""
    attention: AttentionRates
    tokens_per_seq: int = 1
    """Tokens that each decoding sequence computes."""

    def of_steps(self, columns: Mapping[str, Array]) -> Iterator[OperatorPrices]:
        """Yield the operators of ``n`` steps, given as columns of `sim.shape.shape_columns`.

        The decode accounts hold what the decodes would cost in a step of their own, whichever side
        of the roofline binds. What prefills add is prefill compute or memory, by the side that
        binds the operator in the whole step; what they add on the links is communication.
        """
        decoded = self.tokens_per_seq * columns["decode_seqs"]
        decodes, tokens = as_index(decoded), as_index(decoded + columns["prefill_tokens"])
        logits = as_index(columns["logits"])
        decode_logits = np.minimum(decodes, logits)
        for kernel in self.by_tokens:
            yield posted(kernel, tokens, decodes)
        for kernel in self.by_logits:
            yield posted(kernel, logits, decode_logits)
        yield from self._attention(columns)

    def _attention(self, columns: Mapping[str, Array]) -> Iterator[OperatorPrices]:
        none = np.zeros(len(columns["decode_seqs"]), bool)
        decode_s, shared = self.attention.decode_s(columns), self.attention.shared
        if shared is not None and "decode_shared_reads" in columns:
            work_s, fixed_s, _ = shared.of_columns(columns)
            decode_s = decode_s - work_s
            by_account = {accounts.DECODE_STATE_READS: work_s, accounts.LAUNCH_AND_HOST: fixed_s}
            yield OperatorPrices(SHARED_PREFIX, by_account, none)
        yield OperatorPrices(DECODE_ATTENTION, {accounts.DECODE_STATE_READS: decode_s}, none)
        compute_s, memory_s = self.attention.prefill_sides_s(columns)
        bound = compute_s > memory_s
        by_account = _by_side(np.where(bound, compute_s, memory_s), bound)
        yield OperatorPrices(PREFILL_ATTENTION, by_account, bound)

    def token_seconds(self) -> Array:
        """Return the GPU seconds of all operators by tokens: ``[max_num_batched_tokens + 1]``."""
        return _sum([kernel.total_s for kernel in self.by_tokens])

    def compute_seconds(self) -> Array:
        """Return the compute-bound part of `token_seconds`."""
        return _sum([compute_bound_s(kernel) for kernel in self.by_tokens])

    def logit_seconds(self) -> Array:
        """Return the GPU seconds of all operators by number of logits."""
        return _sum([kernel.total_s for kernel in self.by_logits])


def posted(kernel: OperatorSeconds, whole: Int64, decodes: Int64) -> OperatorPrices:
    """Return an operator in ``n`` steps: at index ``whole`` of its prices, at ``decodes`` without
    prefills."""
    kind, name = kernel.operator.kind, kernel.operator.name
    bound, total_s = kernel.compute_bound[whole], kernel.total_s[whole]
    if kind in EXCHANGES:
        by_account = {accounts.COMMUNICATION: total_s}
    else:
        work_s, fixed_s = kernel.work_s[decodes], kernel.fixed_s[decodes]
        by_account = {DECODE_ACCOUNT[kind]: work_s, accounts.LAUNCH_AND_HOST: fixed_s}
        by_account |= _by_side(total_s - (work_s + fixed_s), bound)
    return OperatorPrices(name, by_account, bound, kernel, (whole, decodes))


def _by_side(seconds: Array, compute_bound: NDArray[np.bool_]) -> dict[str, Array]:
    compute, memory = PREFILL_ACCOUNTS
    return {
        compute: np.where(compute_bound, seconds, 0.0),
        memory: np.where(compute_bound, 0.0, seconds),
    }


def summed(operators: Iterable[OperatorPrices], steps: int) -> dict[str, Array]:
    """Return the seconds of ``steps`` steps by account of `sim.accounts.GPU_ACCOUNTS`."""
    seconds = {account: np.zeros(steps) for account in accounts.GPU_ACCOUNTS}
    post(seconds, operators)
    return seconds


def post(seconds: dict[str, Array], operators: Iterable[OperatorPrices]) -> None:
    """Add the operators' seconds to those of accounts, in place."""
    for operator in operators:
        for account, values in operator.by_account.items():
            seconds[account] += values


def price_operators(
    kernels: KernelTimes,
    *,
    graph_sizes: tuple[int, ...],
    tokens: Int64,
    logits: Array,
    max_num_seqs: int,
    equal_contexts: bool = False,
    tokens_per_seq: int = 1,
) -> StepPrices:
    """Price every operator at each of ``tokens`` and ``logits``; raises what `KernelTimes.price`
    raises."""
    shard, per_logit = kernels.shard, kernels.efficiency.sampling_bytes_per_logit

    def priced(operators: list[Operator]) -> tuple[OperatorSeconds, ...]:
        return tuple(kernels.price(operator) for operator in operators)

    return StepPrices(
        by_tokens=priced(token_operators(shard, padded_sizes(tokens, graph_sizes))),
        by_logits=priced(logit_operators(shard, logits, per_logit)),
        attention=kernels.attention_rates(
            max_num_seqs, equal_contexts=equal_contexts, queries=tokens_per_seq
        ),
        tokens_per_seq=tokens_per_seq,
    )


class StepSeconds(NamedTuple):
    """GPU seconds of ``n`` steps on a cool device; arrays are float64 ``[n]``."""

    gpu_s: Array
    compute_s: Array
    """The compute-bound part of steps with prefill, which a power limit stretches."""


def step_seconds(
    kernels: KernelTimes,
    graph_sizes: tuple[int, ...],
    columns: Mapping[str, Array],
    *,
    equal_contexts: bool = False,
) -> StepSeconds:
    """Price steps given as columns, float64 arrays ``[n]`` by `sim.shape.shape_columns`.

    Their operators are priced at the steps' own sizes alone, for fits that try many constants. The
    results equal `StepCost.price` before rounding.
    """
    decodes, chunks = columns["decode_seqs"], columns["prefill_tokens"]
    prices = price_operators(
        kernels,
        graph_sizes=graph_sizes,
        tokens=as_index(decodes + chunks),
        logits=columns["logits"],
        max_num_seqs=int(decodes.max(initial=1)),
        equal_contexts=equal_contexts,
    )
    rates = prices.attention
    compute_s, memory_s = rates.prefill_sides_s(columns)
    gpu_s = prices.token_seconds() + prices.logit_seconds() + np.maximum(compute_s, memory_s)
    gpu_s += rates.decode_s(columns) + rates.shared_fixed_s(columns)
    bound_s = prices.compute_seconds() + np.where(compute_s >= memory_s, compute_s, 0.0)
    return StepSeconds(gpu_s, np.where(chunks > 0, bound_s, 0.0))


def compute_bound_s(kernel: OperatorSeconds) -> Array:
    """Return the compute-bound seconds of an operator."""
    seconds: Array = np.where(kernel.compute_bound, kernel.work_s, 0.0)
    return seconds


def as_index(counts: Array) -> Int64:
    """Return whole numbers given as floats."""
    return counts.astype(np.int64)


def _sum(arrays: list[Array]) -> Array:
    total: Array = np.sum(arrays, axis=0)
    return total
