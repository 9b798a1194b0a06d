"""Seconds of an operator: max(FLOPs / (peak eta_c), bytes / (bandwidth eta_m)) + t0 per call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.formats import BF16_PEAK, load_format
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.work import Array, Operator
from sim.errors import ScenarioError

_SMALL_TILES = np.array([16.0, 32.0, 64.0, 128.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSeconds:
    """Time of all calls of one operator in a step, at ``n`` batch sizes. Arrays are ``[n]``."""

    operator: Operator
    work_s: Array
    """The larger of the compute and memory (or link) side."""
    fixed_s: Array
    """Launch gaps, tile set-up, link latency: does not depend on the amount of work."""
    compute_bound: NDArray[np.bool_]
    """True where the compute side is the larger one."""

    @property
    def total_s(self) -> Array:
        """Seconds of work and fixed time together."""
        total: Array = self.work_s + self.fixed_s
        return total

    def at(self, places: NDArray[np.int64]) -> OperatorSeconds:
        """Return the times at these of the operator's batch sizes."""
        return OperatorSeconds(
            operator=self.operator.at(places),
            work_s=self.work_s[places],
            fixed_s=self.fixed_s[places],
            compute_bound=self.compute_bound[places],
        )


def operator_seconds(
    operator: Operator, gpu: GpuSpec, efficiency: Efficiency, tensor_parallel_size: int = 1
) -> OperatorSeconds:
    """Price one operator. Raises `ScenarioError` if ranks must talk and the GPU has no link."""
    calls = operator.calls
    called = operator.rows > 0
    if operator.kind == "all_reduce":
        link_bytes_per_s = gpu.peer_bytes_per_s
        if link_bytes_per_s is None:
            raise ScenarioError(
                f"{gpu.name} has no known device-to-device link: tensor_parallel_size must be 1"
            )
        # A ring makes two passes of n - 1 hops.
        hops = 2 * (tensor_parallel_size - 1)
        fixed_s = efficiency.all_reduce_fixed_s + hops * efficiency.all_reduce_hop_s
        work_s = operator.comm_bytes / (link_bytes_per_s * efficiency.all_reduce_bandwidth)
        compute_bound = np.zeros_like(called)
    else:
        compute_s, memory_share, fixed_s = _sides(operator, gpu, efficiency)
        num_bytes = operator.weight_bytes + operator.state_bytes + operator.activation_bytes
        memory_s = num_bytes / (gpu.hbm_bytes_per_s * memory_share)
        work_s = np.maximum(compute_s, memory_s)
        compute_bound = compute_s > memory_s
    return OperatorSeconds(
        operator=operator,
        work_s=calls * work_s,
        fixed_s=np.where(called, calls * operator.launches * fixed_s, 0.0),
        compute_bound=compute_bound,
    )


def _sides(operator: Operator, gpu: GpuSpec, efficiency: Efficiency) -> tuple[Array, float, float]:
    """Return one call's compute seconds, the memory efficiency, and a kernel's fixed seconds."""
    peak = peak_of(operator, gpu)
    rows = np.maximum(operator.rows, 1e-9)
    e = efficiency
    if operator.kind == "gemm":
        most, half_rows = e.gemm_compute, e.gemm_half_rows
        if operator.peak == BF16_PEAK:
            half_rows *= streamed_share(operator)
        else:  # fp8's shares stand for every narrow format
            most, half_rows = e.fp8_compute, e.fp8_half_rows
        share = most * rows / (tiled_rows(rows, e.tile_rows) + half_rows)
        return operator.flops / (peak * share), e.gemm_memory, e.gemm_fixed_s
    if operator.kind == "grouped_gemm":
        most, half_rows = e.grouped_compute, e.grouped_half_rows
        if operator.peak != BF16_PEAK:
            most *= e.fp8_compute / e.gemm_compute
        half_rows *= streamed_share(operator)
        share = most * rows / (rows + half_rows)
        return operator.flops / (peak * share), e.grouped_memory, e.grouped_fixed_s
    compute_s = operator.flops / (peak * e.attention_compute)
    if operator.kind == "attention":
        return compute_s, e.attention_memory, e.attention_fixed_s
    if operator.kind == "sampling":
        return compute_s, e.elementwise_memory, e.sampling_fixed_s
    return compute_s, e.elementwise_memory, e.elementwise_fixed_s


_PEAK_BITS = {
    "fp8_flop_per_s": 8,
    "int8_op_per_s": 8,
    "fp4_flop_per_s": 4,
    "int4_op_per_s": 4,
}
"""Bits of a unit's operands; 16 for other units."""


def streamed_share(operator: Operator) -> float:
    """Return a weight's bytes as stored over its bytes as multiplied.

    The cost of a few rows is streaming the matrix through the SMs, in proportion to the bytes
    stored. (The higher peak of a narrow unit scales its half rows in the same way.)
    """
    return load_format(operator.weights).bits / _PEAK_BITS.get(operator.peak, 16)


def tile_by_tile(operator: Operator, efficiency: Efficiency) -> Operator:
    """Return a GEMM as priced for a kernel that takes a tile of rows at once and restarts for the
    next.

    Within one tile it streams its narrow weights at their full advantage; if it restarts, each tile
    pays for filling and draining as a 16-bit one does (0.60 to 0.73 of a 16-bit GEMM from 256 rows
    on, vLLM PR 2497).
    """
    most = load_format(operator.weights).kernel_rows
    if most is None:
        return operator
    tiles = np.ceil(operator.rows / most)
    half_rows = efficiency.gemm_half_rows
    refill = (most + half_rows) / (most + half_rows * streamed_share(operator))
    whole = refill * tiles * most / np.maximum(operator.rows, 1.0)
    again = np.where(operator.rows > most, whole, 1.0)
    return replace(operator, rows=np.minimum(operator.rows, most), flops=again * operator.flops)


def peak_of(operator: Operator, gpu: GpuSpec) -> float:
    """Return the compute peak of an operator. Raises `ScenarioError` if the GPU has none."""
    peak: float | None = getattr(gpu, operator.peak)
    if peak is None and operator.kind == "attention":
        # Scores of a 4-bit indexer are computed in the next wider format that the device has.
        return gpu.fp8_flop_per_s or gpu.bf16_flop_per_s
    if peak is None:
        unit = operator.peak.partition("_")[0]
        raise ScenarioError(f"{gpu.name} has no known {unit} peak: serve the model in 16 bits")
    return peak


def tiled_rows(rows: Array, tile_rows: int) -> Array:
    """Return rows rounded up to a GEMM's tiles: 16, 32, 64, 128, then multiples of
    ``tile_rows``."""
    small = _SMALL_TILES[np.minimum(np.searchsorted(_SMALL_TILES, rows), 3)]
    large = np.ceil(rows / tile_rows) * tile_rows
    tiled: Array = np.where(rows <= _SMALL_TILES[-1], small, large)
    return tiled
