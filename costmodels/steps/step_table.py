"""One step as a table for reports: operators, what binds each, its accounts, its constants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodels.engines.profile import padded_size
from costmodels.formats import BF16_PEAK
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.operators.operators import logit_operators, token_operators
from costmodels.steps.context_cost import MERGE, SHARE
from costmodels.steps.explain import OperatorRow
from costmodels.steps.replica_cost import RankStepCost, ReplicaStepCost
from costmodels.steps.step_split import DECODE_ACCOUNT
from costmodels.steps.streamed_cost import STREAM
from costmodels.steps.wrapped_cost import WrappedStepCost
from costmodels.work import EXCHANGES, Operator
from sim import accounts
from sim.evidence import weakest
from sim.shape import (
    Clip,
    StepShape,
    chunk_shape,
    decode_shape,
    joined,
    shape_columns,
    shape_values,
)

BOUNDS = {"link": "network", "fixed": "launch"}
# The constants of `Efficiency` an operator's seconds hang on, by its kind and what binds it.
_CONSTANTS = {
    ("gemm", "compute"): ("gemm_compute", "gemm_half_rows", "tile_rows"),
    ("gemm", "memory"): ("gemm_memory",),
    ("gemm", "launch"): ("gemm_fixed_s",),
    ("grouped_gemm", "compute"): ("grouped_compute", "grouped_half_rows"),
    ("grouped_gemm", "memory"): ("grouped_memory",),
    ("grouped_gemm", "launch"): ("grouped_fixed_s",),
    ("attention", "compute"): ("attention_compute", "attention_query_tile_tokens"),
    ("attention", "memory"): ("attention_memory", "attention_imbalance", "attention_tile_tokens"),
    ("attention", "launch"): ("attention_fixed_s",),
    ("elementwise", "memory"): ("elementwise_memory",),
    ("elementwise", "launch"): ("elementwise_fixed_s",),
    ("sampling", "memory"): ("sampling_bytes_per_logit", "elementwise_memory"),
    ("sampling", "launch"): ("sampling_fixed_s",),
    ("all_reduce", "network"): ("all_reduce_bandwidth",),
    ("all_reduce", "launch"): ("all_reduce_fixed_s", "all_reduce_hop_s"),
}
# Rows that are no kernels: transfers and exchanges beside them.
_BESIDE = (STREAM, MERGE, SHARE)
_NARROW = {"gemm_compute": "fp8_compute", "gemm_half_rows": "fp8_half_rows"}
PEAKS = (
    "bf16_flop_per_s",
    "fp8_flop_per_s",
    "int8_op_per_s",
    "fp4_flop_per_s",
    "int4_op_per_s",
)
# An account with less than this share of an operator's time is not listed.
_SHARE = 0.05


class StepRow(NamedTuple):
    """One operator of a step on one rank, all its calls together."""

    name: str
    calls: int
    flops: float
    weight_bytes: float
    state_bytes: float
    activation_bytes: float
    comm_bytes: float
    intensity: float | None
    """FLOPs per byte of device memory; None if it moves none."""
    seconds: float
    share: float
    """Share of the step's GPU time."""
    bound: str
    """compute, memory, network, launch, or host link."""
    peak: str
    """The compute peak it runs at, a field of `GpuSpec`."""
    accounts: tuple[str, ...]
    """Accounts that its time is posted to, the largest part first."""
    evidence: str
    constants: tuple[str, ...]
    """Constants of `Efficiency` that its seconds depend on; empty if a measured table serves it."""


def step_row(
    row: OperatorRow,
    *,
    share: float,
    bound: str,
    peak: str,
    accounts: tuple[str, ...],
    evidence: str,
    constants: tuple[str, ...],
) -> StepRow:
    """Return the table row of an operator, from its work and time and the given labels."""
    moved = row.weight_bytes + row.state_bytes + row.activation_bytes
    return StepRow(
        name=row.name,
        calls=row.calls,
        flops=row.flops,
        weight_bytes=row.weight_bytes,
        state_bytes=row.state_bytes,
        activation_bytes=row.activation_bytes,
        comm_bytes=row.comm_bytes,
        intensity=row.flops / moved if moved else None,
        seconds=row.seconds,
        share=share,
        bound=bound,
        peak=peak,
        accounts=accounts,
        evidence=evidence,
        constants=constants,
    )


def simple_step(
    decode_seqs: int,
    context: int,
    prefill_tokens: int = 0,
    prefill_context: int = 0,
    clip_tokens: tuple[Clip, ...] = (),
) -> StepShape:
    """Return a step of equal decodes and one chunk of a prompt that ends in this step.

    ``clip_tokens`` are those of the model.
    """
    parts = [decode_shape(decode_seqs, context, clip_tokens)]
    if prefill_tokens:
        parts.append(chunk_shape(prefill_context, prefill_tokens, clip_tokens))
    return joined(parts)


def step_rows(cost: RankStepCost, shape: StepShape) -> list[StepRow]:
    """Return the operators of one step; their seconds add up to the step's GPU time."""
    described = cost.describe(shape)
    total_s = sum(row.seconds for row in described)
    operators = _operators(cost, cost.own(shape) if isinstance(cost, WrappedStepCost) else shape)
    labels = cost.evidence()
    rows = []
    for row in described:
        # Two groups of layers may have operators of one name; they appear in this order.
        same = operators.get(row.name)
        operator = same.pop(0) if same else None
        beside: dict[str, float] = {}
        if row.name in _BESIDE and isinstance(cost, WrappedStepCost):
            beside = _beside(cost, row, shape)
        rows.append(_row(cost, row, operator, labels, total_s, beside))
    return rows


def step_accounts(
    cost: RankStepCost | WrappedStepCost | ReplicaStepCost, shape: StepShape
) -> dict[str, float]:
    """Return the GPU seconds of the step by account."""
    names = shape_columns(cost.shard.model.clips)
    values = zip(names, shape_values(shape), strict=True)
    columns = {name: np.array([float(value)]) for name, value in values}
    found = cost.split(columns)
    return {account: float(seconds[0]) for account, seconds in found.items()}


def _beside(cost: WrappedStepCost, row: OperatorRow, shape: StepShape) -> dict[str, float]:
    """Return the seconds by account of a row that is no kernel: a transfer or an exchange."""
    if row.name != STREAM:
        return {accounts.COMMUNICATION: row.seconds}
    whole, kernels = step_accounts(cost, shape), step_accounts(cost.kernel_cost, shape)
    return {account: seconds - kernels[account] for account, seconds in whole.items()}


def host_terms(cost: RankStepCost | ReplicaStepCost, shape: StepShape) -> dict[str, float]:
    """Return the step's seconds on the host by activity."""
    price = cost.price(shape)
    seqs = shape.decode_seqs + shape.prefill_seqs
    return {
        "schedule": cost.schedule_ns(seqs) / 1e9,
        "delay to the first kernel": price.launch_delay_ns / 1e9,
        "prepare and launch": price.launch_ns / 1e9,
        "tail after the last launch": price.tail_ns / 1e9,
        "apply outputs, loop": cost.update_ns(seqs) / 1e9,
    }


def step_seconds(
    cost: RankStepCost | ReplicaStepCost, shape: StepShape, *, async_scheduling: bool
) -> float:
    """Return the seconds per step when many such steps follow each other: the slower of GPU and
    host.

    Without async scheduling the host's work stands between the steps.
    """
    price, host = cost.price(shape), host_terms(cost, shape)
    gpu_s, launch_s = price.gpu_ns / 1e9, host["prepare and launch"]
    planning_s = host["schedule"] + host["apply outputs, loop"]
    if async_scheduling:
        return max(gpu_s, planning_s + launch_s)
    delay_s, tail_s = host["delay to the first kernel"], host["tail after the last launch"]
    return planning_s + max(delay_s + gpu_s, launch_s + tail_s)


def ridge_points(gpu: GpuSpec) -> dict[str, float]:
    """Return the FLOPs per byte at which compute and memory take equally long, by peak the
    device has."""
    known = {peak: getattr(gpu, peak) for peak in PEAKS}
    return {peak: value / gpu.hbm_bytes_per_s for peak, value in known.items() if value}


def _operators(cost: RankStepCost, shape: StepShape) -> dict[str, list[Operator]]:
    """Return each operator, for the whole step and for its decodes alone, by name."""
    if not shape.num_tokens:
        return {}
    shard, graphs = cost.shard, cost.graph_sizes
    sizes = [padded_size(shape.num_tokens, graphs)]
    sizes += [padded_size(shape.decode_seqs, graphs) if shape.decode_seqs else 0]
    tokens = np.array(sizes, dtype=float)
    logits = np.array([float(shape.logits), float(min(shape.decode_seqs, shape.logits))])
    bytes_per_logit = cost.efficiency.sampling_bytes_per_logit
    of_logits = logit_operators(shard, logits, bytes_per_logit)
    found: dict[str, list[Operator]] = {}
    for operator in (*token_operators(shard, tokens), *of_logits):
        found.setdefault(operator.name, []).append(operator)
    return found


def _row(
    cost: RankStepCost,
    row: OperatorRow,
    operator: Operator | None,
    labels: dict[str, str],
    total_s: float,
    beside: dict[str, float],
) -> StepRow:
    kind, peak = (operator.kind, operator.peak) if operator else ("attention", BF16_PEAK)
    bound = BOUNDS.get(row.bound, row.bound)
    table = cost.kernels.label(operator) if operator else None
    posted = beside or _posted(cost, row, operator, bound)
    named = sorted(
        (account for account, seconds in posted.items() if seconds >= _SHARE * row.seconds > 0),
        key=lambda account: -posted[account],
    )
    evidence = table or weakest(labels[account] for account in named)
    backend = cost.kernels.backend
    if (
        backend
        and row.name == "decode_attention"
        and accounts.DECODE_STATE_READS in backend.accounts
    ):
        table = table or backend.label
    cores = row.name == "decode_attention" and cost.kernels.cores_bind_decode
    constants = () if table or beside or cores else _CONSTANTS.get((kind, bound), ())
    if peak != BF16_PEAK:
        constants = tuple(_NARROW.get(name, name) for name in constants)
    return step_row(
        row,
        share=row.seconds / total_s if total_s else 0.0,
        bound=bound,
        peak=peak,
        accounts=tuple(named),
        evidence=evidence,
        constants=constants,
    )


def _posted(
    cost: RankStepCost, row: OperatorRow, operator: Operator | None, bound: str
) -> dict[str, float]:
    """Return the seconds of one operator by account, posted as in `step_split`."""
    if operator is None:
        if not row.name.startswith("prefill"):
            return {accounts.DECODE_STATE_READS: row.seconds}
        side = accounts.PREFILL_COMPUTE if bound == "compute" else accounts.PREFILL_MEMORY
        return {side: row.seconds}
    priced = cost.kernels.price(operator)
    if operator.kind in EXCHANGES:
        return {accounts.COMMUNICATION: float(priced.total_s[0])}
    side = accounts.PREFILL_COMPUTE if priced.compute_bound[0] else accounts.PREFILL_MEMORY
    return {
        DECODE_ACCOUNT[operator.kind]: float(priced.work_s[1]),
        accounts.LAUNCH_AND_HOST: float(priced.fixed_s[1]),
        side: float(priced.total_s[0] - priced.total_s[1]),
    }


def group_rows(cost: ReplicaStepCost, shape: StepShape) -> list[StepRow]:
    """Return the rows of all layers on the busiest rank for one micro-batch, shared experts
    included.

    For a pipeline, that is the time of one micro-batch from the first stage to the last.
    """
    dealt = cost.deal(shape)
    rows = step_rows(cost.rank, dealt.shape._replace(logits=dealt.logits))
    labels = cost.evidence()
    shared = zip(cost.group, cost.describe_group(dealt.mean_tokens), strict=True)
    is_decode = not dealt.shape.prefill_tokens
    rows += [_group_row(priced, row, labels, is_decode) for priced, row in shared]
    total_s = sum(row.seconds for row in rows)
    return [row._replace(share=row.seconds / total_s if total_s else 0.0) for row in rows]


def _group_row(
    priced: OperatorSeconds, row: OperatorRow, labels: dict[str, str], is_decode: bool
) -> StepRow:
    operator = priced.operator
    bound = BOUNDS.get(row.bound, row.bound)
    account = accounts.COMMUNICATION if operator.exchange else DECODE_ACCOUNT[operator.kind]
    if not is_decode and not operator.exchange:
        is_compute = bound == "compute"
        account = accounts.PREFILL_COMPUTE if is_compute else accounts.PREFILL_MEMORY
    return step_row(
        row,
        share=0.0,
        bound=bound,
        peak=operator.peak,
        accounts=(account,),
        evidence=weakest((labels[account], "extrapolated")),
        constants=(),
    )
