"""Readings of one step for reports: its operators, what binds each, its accounts, its constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from costmodels.formats import BF16_PEAK
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.operators.attention import AttentionRates
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import (
    DecodeSums,
    decode_operators,
    prefill_operators,
)
from costmodels.steps.prices import (
    DECODE_ACCOUNT,
    DECODE_ATTENTION,
    PREFILL_ACCOUNTS,
    PREFILL_ATTENTION,
    SHARED_PREFIX,
    OperatorPrices,
    StepPrices,
)
from costmodels.work import EXCHANGES, Array, Operator
from sim import accounts
from sim.evidence import weakest
from sim.protocols import StepCost
from sim.shape import (
    Clip,
    StepShape,
    chunk_shape,
    decode_shape,
    joined,
    shape_columns,
    shape_values,
)

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
_NARROW = {"gemm_compute": "fp8_compute", "gemm_half_rows": "fp8_half_rows"}
PEAKS = (
    "bf16_flop_per_s",
    "fp8_flop_per_s",
    "int8_op_per_s",
    "fp4_flop_per_s",
    "int4_op_per_s",
)
# An account with less than this share of an operator's time is not listed.
_LEAST_SHARE = 0.05


class StepRow(NamedTuple):
    """One operator of a step on one rank, all its calls together."""

    name: str
    calls: int
    flops: float = 0.0
    weight_bytes: float = 0.0
    state_bytes: float = 0.0
    activation_bytes: float = 0.0
    comm_bytes: float = 0.0
    intensity: float | None = None
    """FLOPs per byte of device memory; None if it moves none."""
    seconds: float = 0.0
    share: float = 0.0
    """Share of the step's GPU time."""
    bound: str = "memory"
    """compute, memory, network, launch, or host link."""
    peak: str = BF16_PEAK
    """The compute peak it runs at, a field of `GpuSpec`."""
    accounts: tuple[str, ...] = ()
    """Accounts that its time is posted to, the largest part first."""
    evidence: str = ""
    constants: tuple[str, ...] = ()
    """Constants of `Efficiency` that its seconds depend on; empty if a measured table or the rates
    of its kernel serve it."""
    kernel: str = ""
    """The kernel that the engine chooses, where its rule is known."""


class RowLabels(NamedTuple):
    """What the labels of a row's numbers depend on."""

    kernels: KernelTimes
    by_account: Mapping[str, str]
    """RowLabels label of each account."""


def rank_rows(prices: StepPrices, shape: StepShape, labels: RowLabels) -> list[StepRow]:
    """Return the operators of one step on one rank; their seconds add up to its kernels' time.

    Shares of the step are left at 0.
    """
    columns = step_columns(shape, labels.kernels.shard.model.clips)
    found = list(prices.of_steps(columns))
    of_tokens, of_logits = len(prices.by_tokens), len(prices.by_logits)
    attention = {one.name: one for one in found[of_tokens + of_logits :]}
    rows = [_kernel_row(one, labels) for one in found[:of_tokens]]
    if shape.decode_seqs:
        rows += _decode_rows(prices.attention, columns, attention, labels)
    if shape.prefill_tokens:
        rows += _prefill_rows(prices.attention, columns, attention[PREFILL_ATTENTION], labels)
    if shape.logits:
        rows += [_kernel_row(one, labels) for one in found[of_tokens:][:of_logits]]
    return rows


def _kernel_row(one: OperatorPrices, labels: RowLabels) -> StepRow:
    """Return the row of an operator that is priced by a count of tokens or logits."""
    kernel = one.sized()
    operator, row = kernel.operator, work_row(kernel)
    table = labels.kernels.label(operator)
    row = posted_row(row, first_step(one.by_account), labels.by_account)
    constants = () if table else _CONSTANTS.get((operator.kind, row.bound), ())
    if operator.peak != BF16_PEAK:
        constants = tuple(_NARROW.get(name, name) for name in constants)
    chosen = labels.kernels.chosen
    if not table and chosen.prices(operator):
        constants = ()
    row = row._replace(evidence=table or row.evidence, constants=constants)
    return row._replace(kernel="" if table else chosen.name_of(operator))


def work_row(kernel: OperatorSeconds) -> StepRow:
    """Return the work, time and bound of an operator at the first of its batch sizes."""
    op = kernel.operator
    flops, weights, state, activation, sent = (
        op.calls * float(amount[0])
        for amount in (
            op.flops,
            op.weight_bytes,
            op.state_bytes,
            op.activation_bytes,
            op.comm_bytes,
        )
    )
    bound = "network" if op.kind in EXCHANGES else "memory"
    if kernel.compute_bound[0]:
        bound = "compute"
    if kernel.fixed_s[0] > kernel.work_s[0]:
        bound = "launch"
    row = StepRow(op.name, op.calls, flops, weights, state, activation, sent, peak=op.peak)
    row = row._replace(seconds=float(kernel.total_s[0]), bound=bound)
    return row._replace(intensity=_intensity(row))


def _decode_rows(
    rates: AttentionRates,
    columns: Mapping[str, Array],
    attention: Mapping[str, OperatorPrices],
    labels: RowLabels,
) -> Iterator[StepRow]:
    kernels, sums = labels.kernels, rates.decode_sums(columns)
    shared, whole, times = attention.get(SHARED_PREFIX), sums.clipped[None], 0.0
    if shared is not None and rates.shared is not None:
        _, _, tokens = rates.shared.of_columns(columns)
        whole, reads = whole - tokens, columns["decode_shared_reads"]
        times = float(tokens[0]) / max(float(reads[0]), 1.0)
    sums = sums._replace(clipped={**sums.clipped, None: whole})
    cores, backend = kernels.cores_bind_decode, kernels.backend
    reported = backend is not None and accounts.DECODE_STATE_READS in backend.accounts
    scores = kernels.score_bytes / 2 * float(whole[0])
    layout = kernels.shard.layout  # ranks that share contexts each attend to a part of them
    for row in _summed(attention[DECODE_ATTENTION], decode_operators(kernels.shard, sums), labels):
        row = row._replace(
            flops=row.flops / layout.prefill_context_parallel_size,
            state_bytes=row.state_bytes / layout.context_ranks,
            activation_bytes=scores,
            bound="compute" if cores else row.bound,
        )
        yield _attention_row(row, has_constants=not (cores or reported))
    if shared is not None and times:
        once = DecodeSums(seqs=0 * sums.seqs, clipped={None: reads})
        for row in _summed(shared, decode_operators(kernels.shard, once), labels):
            yield _attention_row(row._replace(flops=row.flops * times))


def _prefill_rows(
    rates: AttentionRates,
    columns: Mapping[str, Array],
    one: OperatorPrices,
    labels: RowLabels,
) -> Iterator[StepRow]:
    kernels, sums = labels.kernels, rates.prefill_sums(columns)
    bound = "compute" if one.compute_bound[0] else "memory"
    scores = kernels.score_bytes * float(sums.pairs[None][0])
    for row in _summed(one, prefill_operators(kernels.shard, sums), labels):
        yield _attention_row(row._replace(bound=bound, activation_bytes=scores))


def _summed(one: OperatorPrices, operators: list[Operator], labels: RowLabels) -> Iterator[StepRow]:
    """Yield one row for the attention of all kinds of layers; no row if no layer has any."""
    rows = [work_row(labels.kernels.price(operator)) for operator in operators]
    for row in rows[:1]:
        summed = row._replace(
            name=one.name,
            calls=sum(row.calls for row in rows),
            flops=sum(row.flops for row in rows),
            state_bytes=sum(row.state_bytes for row in rows),
            seconds=float(one.total_s[0]),
            peak=BF16_PEAK,
            kernel=labels.kernels.chosen.attention_names,
        )
        yield posted_row(summed, first_step(one.by_account), labels.by_account)


def _attention_row(row: StepRow, *, has_constants: bool = True) -> StepRow:
    constants = _CONSTANTS.get(("attention", row.bound), ()) if has_constants else ()
    return row._replace(constants=constants, intensity=_intensity(row))


def group_row(one: OperatorPrices, labels: RowLabels, *, is_decode: bool) -> StepRow:
    """Return the row of experts that ranks share, or of an exchange of their tokens.

    All of its seconds are posted to one account, by what binds it.
    """
    kernel = one.sized()
    row, account = work_row(kernel), DECODE_ACCOUNT[kernel.operator.kind]
    if not is_decode and kernel.operator.exchange is None:
        account = PREFILL_ACCOUNTS[0 if row.bound == "compute" else 1]
    label = weakest((labels.by_account[account], "extrapolated"))
    return row._replace(accounts=(account,), evidence=label)


def posted_row(
    row: StepRow, posted_s: Mapping[str, float], by_account: Mapping[str, str]
) -> StepRow:
    """Return a row with the accounts that have a part of its seconds, and the weakest of their
    labels, which are given ``by_account``."""
    named = sorted(
        (account for account, s in posted_s.items() if s >= _LEAST_SHARE * row.seconds > 0),
        key=lambda account: -posted_s[account],
    )
    return row._replace(
        accounts=tuple(named), evidence=weakest(by_account[account] for account in named)
    )


def with_shares(rows: list[StepRow]) -> list[StepRow]:
    """Return the rows with their shares of all seconds."""
    total_s = sum(row.seconds for row in rows)
    return [row._replace(share=row.seconds / total_s if total_s else 0.0) for row in rows]


def _intensity(row: StepRow) -> float | None:
    moved = row.weight_bytes + row.state_bytes + row.activation_bytes
    return row.flops / moved if moved else None


def first_step(by_account: Mapping[str, Array]) -> dict[str, float]:
    """Return the seconds of the first step by account."""
    return {account: float(seconds[0]) for account, seconds in by_account.items()}


class PeakSeconds(NamedTuple):
    """Seconds of ``n`` steps on one rank; arrays are ``[n]``."""

    arithmetic_s: Array
    """What their FLOPs would take at the device's peak for each operator's numbers."""
    memory_s: Array
    """What their bytes would take at the device memory's peak bandwidth."""


def peak_seconds(
    prices: StepPrices, kernels: KernelTimes, columns: Mapping[str, Array]
) -> PeakSeconds:
    """Return the work of ``n`` steps as seconds at the peaks; columns as `StepPrices.of_steps`
    takes them."""
    found, layout, gpu = list(prices.of_steps(columns)), kernels.shard.layout, kernels.gpu
    sized = [one.kernel.at(one.places[0]) for one in found if one.kernel is not None]
    decodes = decode_operators(kernels.shard, prices.attention.decode_sums(columns))
    prefills = prefill_operators(kernels.shard, prices.attention.prefill_sums(columns))
    parts = [
        *((one.operator, 1, 1) for one in sized),
        *((one, layout.prefill_context_parallel_size, layout.context_ranks) for one in decodes),
        *((one, 1, 1) for one in prefills),
    ]
    arithmetic_s, memory_s = np.zeros((2, len(columns["decode_seqs"])))
    for op, by_queries, by_contexts in parts:
        peak = getattr(gpu, op.peak) or gpu.bf16_flop_per_s
        arithmetic_s += op.calls * op.flops / by_queries / peak
        moved = op.weight_bytes + op.state_bytes / by_contexts + op.activation_bytes
        memory_s += op.calls * moved / gpu.hbm_bytes_per_s
    return PeakSeconds(arithmetic_s, memory_s)


def step_columns(shape: StepShape, clips: tuple[Clip, ...]) -> dict[str, Array]:
    """Return the columns of `sim.shape.shape_columns` of one step, without what it verifies."""
    names = shape_columns(clips, shares_prefixes=bool(shape.shared), adapters=bool(shape.adapters))
    values = shape_values(shape._replace(speculated=()))
    return {name: np.array([float(value)]) for name, value in zip(names, values, strict=True)}


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


def host_terms(cost: StepCost, shape: StepShape) -> dict[str, float]:
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


def step_seconds(cost: StepCost, shape: StepShape, *, async_scheduling: bool) -> float:
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
