"""Splits the GPU seconds of many steps by time account, vectorized over the step log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware.roofline import OperatorSeconds
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import logit_operators, token_operators
from costmodels.operators.step_tables import StepTables, padded_sizes
from costmodels.work import EXCHANGES, Array
from sim import accounts

# Where the decode part of an operator's work goes; its fixed time is launch, unless it is a link's.
DECODE_ACCOUNT = {
    "gemm": accounts.DECODE_WEIGHT_READS,
    "grouped_gemm": accounts.DECODE_WEIGHT_READS,
    "attention": accounts.DECODE_STATE_READS,
    "elementwise": accounts.REMAINDER,
    "sampling": accounts.REMAINDER,
    **dict.fromkeys(EXCHANGES, accounts.COMMUNICATION),
}


def split_steps(tables: StepTables, columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return GPU seconds ``[n]`` by account; ``columns`` as in `sim.protocols.StepCost.split`.

    The decode accounts hold what the decodes would cost in a step of their own, whichever side of
    the roofline binds. What prefills add is prefill compute or memory, by the side that binds the
    operator in the whole step; what they add on the links is communication.
    """
    decoded = tables.tokens_per_seq * columns["decode_seqs"]
    tokens = _index(decoded + columns["prefill_tokens"])
    logits = _index(columns["logits"])
    decodes = _index(decoded)
    seconds = {account: np.zeros(tokens.size) for account in accounts.GPU_ACCOUNTS}
    for operator in tables.by_tokens:
        post_operator(seconds, operator, tokens, decodes)
    decode_logits = np.minimum(decodes, logits)
    for operator in tables.by_logits:
        post_operator(seconds, operator, logits, decode_logits)

    seconds[accounts.DECODE_STATE_READS] += tables.attention.decode_s(columns)
    seconds[accounts.LAUNCH_AND_HOST] += tables.attention.shared_fixed_s(columns)
    compute_s, memory_s = tables.attention.prefill_sides_s(columns)
    compute_bound = compute_s > memory_s
    seconds[accounts.PREFILL_COMPUTE] += np.where(compute_bound, compute_s, 0.0)
    seconds[accounts.PREFILL_MEMORY] += np.where(compute_bound, 0.0, memory_s)
    return seconds


def post_operator(
    seconds: dict[str, Array],
    operator: OperatorSeconds,
    whole: NDArray[np.int64],
    decodes: NDArray[np.int64],
) -> None:
    """Post one operator: its decode part at index ``decodes``, the rest up to index ``whole``."""
    kind = operator.operator.kind
    decode_work_s, decode_fixed_s = operator.work_s[decodes], operator.fixed_s[decodes]
    added_s = operator.total_s[whole] - (decode_work_s + decode_fixed_s)
    if kind in EXCHANGES:
        seconds[accounts.COMMUNICATION] += operator.total_s[whole]
        return
    seconds[DECODE_ACCOUNT[kind]] += decode_work_s
    seconds[accounts.LAUNCH_AND_HOST] += decode_fixed_s
    compute_bound = operator.compute_bound[whole]
    seconds[accounts.PREFILL_COMPUTE] += np.where(compute_bound, added_s, 0.0)
    seconds[accounts.PREFILL_MEMORY] += np.where(compute_bound, 0.0, added_s)


def _index(counts: Array) -> NDArray[np.int64]:
    return counts.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
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

    The results equal `RooflineStepCost.price` before rounding.
    """
    efficiency = kernels.efficiency
    decodes, logits = columns["decode_seqs"], columns["logits"]
    tokens = padded_sizes((decodes + columns["prefill_tokens"]).astype(np.int64), graph_sizes)
    gpu_s = np.zeros_like(decodes)
    compute_s = np.zeros_like(decodes)
    for operator in token_operators(kernels.shard, tokens):
        priced = kernels.price(operator)
        gpu_s += priced.total_s
        compute_s += np.where(priced.compute_bound, priced.work_s, 0.0)
    for operator in logit_operators(kernels.shard, logits, efficiency.sampling_bytes_per_logit):
        gpu_s += kernels.price(operator).total_s

    most_seqs = int(decodes.max(initial=1))
    rates = kernels.attention_rates(most_seqs, equal_contexts=equal_contexts)
    gpu_s += rates.decode_s(columns) + rates.shared_fixed_s(columns)
    attention_s, memory_s = rates.prefill_sides_s(columns)
    gpu_s += np.maximum(attention_s, memory_s)
    compute_s += np.where(attention_s >= memory_s, attention_s, 0.0)
    return StepSeconds(
        gpu_s=gpu_s, compute_s=np.where(columns["prefill_tokens"] > 0, compute_s, 0.0)
    )
