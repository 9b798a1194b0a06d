"""GPU seconds of many steps at once, from their shapes: what fitting and checking need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.kernel_times import KernelTimes
from costmodels.operators import logit_operators, token_operators
from costmodels.step_tables import padded_sizes
from costmodels.work import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """GPU seconds of ``n`` steps on a cool device; arrays are float64 ``[n]``."""

    gpu_s: Array
    compute_s: Array
    """The compute-bound part of steps with prefill: what a power limit stretches."""


def step_seconds(
    kernels: KernelTimes,
    graph_sizes: tuple[int, ...],
    columns: Mapping[str, Array],
    *,
    equal_contexts: bool = False,
) -> StepSeconds:
    """Price steps given as columns, float64 arrays ``[n]`` by `sim.shape.shape_columns`.

    The same figures as `RooflineStepCost.price`, before rounding.
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
