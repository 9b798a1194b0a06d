"""A step cost explained: its operators one by one, its evidence, its sources."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodels.efficiency import Efficiency
from costmodels.engine_profile import EngineProfile, padded_size
from costmodels.evidence import Source, weakest
from costmodels.gpu_spec import GpuSpec
from costmodels.operators import attention_operator, logit_operators, token_operators
from costmodels.parallel import RankShard
from costmodels.roofline import OperatorSeconds, operator_seconds
from costmodels.step_tables import decode_imbalance
from sim import accounts
from sim.shape import StepShape

# The constants each account's seconds hang on, and the datasheet number they scale.
_WEIGHTS = ("gemm_memory", "gemm_compute", "gemm_half_rows", "tile_rows")
_EXPERTS = ("grouped_memory", "grouped_compute", "grouped_half_rows")
_COMPUTE = ("gemm_compute", "attention_compute")
_MEMORY = ("gemm_memory", "attention_memory", "elementwise_memory")
_FIXED = ("gemm_fixed_s", "attention_fixed_s", "elementwise_fixed_s", "sampling_fixed_s")
_LINKS = ("all_reduce_bandwidth", "all_reduce_hop_s", "all_reduce_fixed_s")


class OperatorRow(NamedTuple):
    """One operator in one step on one rank, all its calls together."""

    name: str
    calls: int
    flops: float
    weight_bytes: float
    state_bytes: float
    activation_bytes: float
    comm_bytes: float
    seconds: float
    bound: str
    """compute, memory, link, or fixed where fixed time is the largest part."""


def describe_step(
    shard: RankShard,
    gpu: GpuSpec,
    efficiency: Efficiency,
    graph_sizes: tuple[int, ...],
    shape: StepShape,
) -> list[OperatorRow]:
    """The operators of one step in the order of `token_operators`; their seconds add up to it."""
    if not shape.num_tokens:
        return []
    tokens = np.array([float(padded_size(shape.num_tokens, graph_sizes))])
    decode_kv = shape.decode_context_tokens + efficiency.decode_seq_tokens * shape.decode_seqs
    prefill_kv = shape.prefill_context_tokens + shape.prefill_tokens
    ranks = shard.tensor_parallel_size
    rows = [
        _row(operator_seconds(op, gpu, efficiency, ranks)) for op in token_operators(shard, tokens)
    ]

    def attention(name: str, pairs: float, kv_tokens: float) -> OperatorSeconds:
        operator = attention_operator(shard, name, np.array([pairs]), np.array([kv_tokens]))
        return operator_seconds(operator, gpu, efficiency, ranks)

    if decode_kv:
        uneven = decode_imbalance(shard, gpu, efficiency, shape.decode_seqs)[-1]
        even = _row(attention("decode_attention", decode_kv, decode_kv))
        rows.append(even._replace(seconds=even.seconds * float(uneven)))
    if prefill_kv:
        # The half-empty query tile of each chunk costs time and is no work.
        tiled = shape.prefill_pairs + efficiency.attention_query_tile_tokens / 2 * prefill_kv
        spent = _row(attention("prefill_attention", tiled, prefill_kv))
        done = _row(attention("prefill_attention", shape.prefill_pairs, prefill_kv))
        rows.append(spent._replace(flops=done.flops))
    if shape.logits:
        logits = np.array([float(shape.logits)])
        rows += [
            _row(operator_seconds(op, gpu, efficiency, ranks))
            for op in logit_operators(shard, logits, efficiency.sampling_bytes_per_logit)
        ]
    return rows


def _row(priced: OperatorSeconds) -> OperatorRow:
    op = priced.operator
    if priced.fixed_s[0] > priced.work_s[0]:
        bound = "fixed"
    elif op.kind == "all_reduce":
        bound = "link"
    else:
        bound = "compute" if priced.compute_bound[0] else "memory"
    return OperatorRow(
        name=op.name,
        calls=op.calls,
        flops=op.calls * float(op.flops[0]),
        weight_bytes=op.calls * float(op.weight_bytes[0]),
        state_bytes=op.calls * float(op.state_bytes[0]),
        activation_bytes=op.calls * float(op.activation_bytes[0]),
        comm_bytes=op.calls * float(op.comm_bytes[0]),
        seconds=float(priced.total_s[0]),
        bound=bound,
    )


def account_evidence(shard: RankShard, gpu: GpuSpec, efficiency: Efficiency) -> dict[str, str]:
    """The label of each account of `sim.accounts.GPU_ACCOUNTS`.

    Fitted constants stand for themselves: only their product with the peak was measured. A peak
    times a generic efficiency is ``datasheet``, or weaker where the peak itself is. On several
    ranks what was fitted on one is ``extrapolated``.
    """
    experts = _EXPERTS if shard.model.num_moe_layers else ()

    def label(constants: tuple[str, ...], *peaks: str) -> str:
        found = weakest(efficiency.label_of(constant) for constant in constants)
        if found in ("measured", "fitted", "extrapolated"):
            several = shard.tensor_parallel_size > 1
            return weakest((found, "extrapolated")) if several else found
        if not peaks:
            return found
        return weakest(("datasheet", *(gpu.source_of(peak)["label"] for peak in peaks)))

    fixed = (*_FIXED, "grouped_fixed_s") if experts else _FIXED
    one_rank = shard.tensor_parallel_size == 1
    return {
        accounts.PREFILL_COMPUTE: label((*_COMPUTE, *experts), "bf16_flop_per_s"),
        accounts.PREFILL_MEMORY: label((*_MEMORY, *experts), "hbm_bytes_per_s"),
        accounts.DECODE_WEIGHT_READS: label((*_WEIGHTS, *experts), "hbm_bytes_per_s"),
        accounts.DECODE_STATE_READS: label(("attention_memory",), "hbm_bytes_per_s"),
        # One rank sends nothing: its zero is exact.
        accounts.COMMUNICATION: "measured" if one_rank else label(_LINKS),
        accounts.LAUNCH_AND_HOST: label(fixed),
        accounts.REMAINDER: label(
            ("elementwise_memory", "sampling_bytes_per_logit"), "hbm_bytes_per_s"
        ),
    }


def step_sources(gpu: GpuSpec, efficiency: Efficiency, profile: EngineProfile) -> list[Source]:
    """The device numbers in use, every efficiency constant and every engine constant."""
    numbers = ["bf16_flop_per_s", "hbm_bytes", "hbm_bytes_per_s"]
    if gpu.fabric_bytes_per_s is not None:
        numbers.append("fabric_bytes_per_s")
    elif gpu.host_link_bytes_per_s is not None:
        numbers.append("host_link_bytes_per_s")
    return [
        *(gpu.source_of(number) for number in numbers),
        *efficiency.sources(),
        *profile.sources(),
    ]
