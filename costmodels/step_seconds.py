"""GPU seconds of many steps at once, from their shapes: what fitting and checking need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.efficiency import Efficiency
from costmodels.gpu_spec import GpuSpec
from costmodels.operators import Array, attention_operator, logit_operators, token_operators
from costmodels.parallel import RankShard
from costmodels.roofline import operator_seconds
from costmodels.step_tables import decode_imbalance, padded_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """GPU seconds of ``n`` steps on a cool device; arrays are float64 ``[n]``."""

    gpu_s: Array
    compute_s: Array
    """The compute-bound part of steps with prefill: what a power limit stretches."""


def step_seconds(
    shard: RankShard,
    gpu: GpuSpec,
    efficiency: Efficiency,
    graph_sizes: tuple[int, ...],
    columns: Mapping[str, Array],
    *,
    equal_contexts: bool = False,
) -> StepSeconds:
    """Price steps given as columns, one float64 array ``[n]`` per field of `StepShape`.

    The same figures as `RooflineStepCost.price`, before rounding.
    """
    ranks = shard.tensor_parallel_size
    decodes, logits = columns["decode_seqs"], columns["logits"]
    tokens = padded_sizes((decodes + columns["prefill_tokens"]).astype(np.int64), graph_sizes)
    gpu_s = np.zeros_like(decodes)
    compute_s = np.zeros_like(decodes)
    for operator in token_operators(shard, tokens):
        priced = operator_seconds(operator, gpu, efficiency, ranks)
        gpu_s += priced.total_s
        compute_s += np.where(priced.compute_bound, priced.work_s, 0.0)
    for operator in logit_operators(shard, logits, efficiency.sampling_bytes_per_logit):
        gpu_s += operator_seconds(operator, gpu, efficiency, ranks).total_s

    one, none = np.ones(1), np.zeros(1)

    def rate_s(pairs: Array, kv_tokens: Array) -> float:
        operator = attention_operator(shard, "attention", pairs, kv_tokens)
        return float(operator_seconds(operator, gpu, efficiency, ranks).work_s[0])

    uneven = decode_imbalance(
        shard, gpu, efficiency, int(decodes.max(initial=1)), equal_contexts=equal_contexts
    )
    context = columns["decode_context_tokens"] + efficiency.decode_seq_tokens * decodes
    gpu_s += rate_s(one, one) * uneven[decodes.astype(np.int64)] * context
    kv_tokens = columns["prefill_context_tokens"] + columns["prefill_tokens"]
    pairs = columns["prefill_pairs"] + efficiency.attention_query_tile_tokens / 2 * kv_tokens
    attention_s, memory_s = rate_s(one, none) * pairs, rate_s(none, one) * kv_tokens
    gpu_s += np.maximum(attention_s, memory_s)
    compute_s += np.where(attention_s >= memory_s, attention_s, 0.0)
    return StepSeconds(
        gpu_s=gpu_s, compute_s=np.where(columns["prefill_tokens"] > 0, compute_s, 0.0)
    )
