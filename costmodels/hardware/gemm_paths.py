"""GEMM families by precision: the unit that multiplies, the cost of dequantizing, and crossovers.

Quantized weights are unpacked in the kernel's main loop, by cores that issue far fewer instructions
than the tensor cores multiply. Each tile of rows unpacks all its weights again, so the cost is
proportional to weights x tiles of rows, while the gain is in bytes read once. A scheme that scales
partial sums pays instead once per output and group of the inner size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodels.formats import BF16_PEAK, load_format
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.kernel_curves import core_instructions_per_s
from costmodels.work import Array, Operator
from sim.errors import ScenarioError

_TILE_ROWS = 128


class PrecisionPath(NamedTuple):
    """One way to multiply: what is stored, what multiplies, and the work of the cores beside it."""

    name: str
    weights: str
    """Format of matrices in ``formats.yaml``; the next two: of what they are multiplied with,
    and of keys."""
    activations: str
    kv: str
    peak: str
    """The unit, as a peak of `GpuSpec`."""
    weight_instructions: float
    """Instructions to unpack one weight, once per tile of rows."""
    sum_group: int
    """Inner elements after which partial sums are scaled in 32 bits; 0: never."""
    row_flops: float
    """16-bit FLOPs of online transforms per input element. FlatQuant's Kronecker pair of an
    input of n elements costs about 4 sqrt(n) each."""
    kv_instructions: float
    """Instructions of decode attention beside the tensor cores, per cache element and query
    head: unpack, scale, multiply and add. Such kernels (FasterTransformer's and its descendants)
    work on one query head per block, so grouped heads unpack the shared keys again."""
    source: str
    shares_unpacking: bool = False
    """Whether grouped query heads share one unpacking, and ``kv_instructions`` are per cache
    element alone."""

    @property
    def label(self) -> str:
        """Evidence label of its costs."""
        return "assumed" if self.source.startswith("assumed") else "reported"


# Decode attention, counted in the source of QServe's kernel (mit-han-lab/omniserve): 8 packed 4-bit
# elements take a shift, 4 logic, 4 two-wide subtractions and 4 two-wide multiply-adds, 13 in all;
# then each is converted and multiplied in 32 bits (3 with the query's conversion for keys, 2 for
# values). 8 bits are assumed to take equally many to unpack and scale.
_SUM_INSTRUCTIONS = 2.0  # convert a sum to a float, multiply and add it
PATHS = {
    path.name: path
    for path in (
        PrecisionPath(
            "FP16", "float16", "float16", "float16", BF16_PEAK, 0.0, 0, 0.0, 2.5, "no conversion"
        ),
        PrecisionPath(
            "W4A16", "int4_g128", "float16", "float16", BF16_PEAK, 1.1, 0, 0.0, 2.5,
            "assumed: 8 weights in 4 logic and 4 two-wide multiply-adds, and shifts (AWQ, Marlin)",
        ),
        PrecisionPath(
            "W8A8", "int8", "int8", "kv_int8", "int8_op_per_s", 0.0, 0, 0.0, 4.0,
            "SmoothQuant: scales a channel and a token, applied to finished sums",
        ),
        PrecisionPath(
            "W4A8KV4", "w4a8_channel", "int8", "kv_int4", "int8_op_per_s", 0.25, 0, 0.0, 4.1,
            "QServe (2405.04532), a scale a channel: unpacking alone, four weights a register",
        ),
        PrecisionPath(
            "W4A8KV4 g128", "w4a8_g128", "int8", "kv_int4", "int8_op_per_s", 0.75, 0, 0.0, 4.1,
            "QServe, groups of 128: unpack, multiply and subtract, four weights a register",
        ),
        PrecisionPath(
            "W4A4", "w4a4", "w4a4", "kv_int4", "int4_op_per_s", 0.0, 128, 0.0, 4.1,
            "Atom: 4-bit products, partial sums scaled once a group of 128",
        ),
        PrecisionPath(
            "W4A4 FlatQuant", "w4a4", "w4a4", "kv_int4", "int4_op_per_s", 0.0, 0, 4.0, 4.1,
            "FlatQuant (2410.09426): scales a channel and a token, online Kronecker transforms",
        ),
        PrecisionPath(
            "KIVI", "float16", "float16", "kivi4", BF16_PEAK, 0.0, 0, 0.0, 1.6,
            "assumed: unpacked as by QServe (13 instructions for 8 elements), but once for all "
            "query heads of a group, whose products run on tensor cores (KIVI, 2402.02750, fuses "
            "unpacking with them)", shares_unpacking=True,
        ),
    )
}  # fmt: skip
_BY_FORMAT = {
    "int4_g128": "W4A16",
    "w4a8_channel": "W4A8KV4",
    "w4a8_g128": "W4A8KV4 g128",
    "w4a4": "W4A4 FlatQuant",
}
_BY_CACHE = {"kv_int8": "W8A8", "kv_int4": "W4A8KV4", "kivi4": "KIVI", "kivi2": "KIVI"}


def path_peak(path: PrecisionPath, gpu: GpuSpec) -> float:
    """Return the peak of its unit. Raises `ScenarioError` if the device has no such unit."""
    found = getattr(gpu, path.peak)
    if found is None:
        raise ScenarioError(f"{gpu.name} has no unit for {path.name}")
    return float(found)


def format_path(weights: str) -> PrecisionPath | None:
    """Return the path of multiplying weights of a format; None: its costs beside the tensor cores
    are not known.

    4-bit floats and integers in small groups are unpacked too, but the cost is not known.
    """
    name = _BY_FORMAT.get(weights)
    return PATHS[name] if name else None


def cache_path(kv: str) -> PrecisionPath | None:
    """Return the path of reading a cache of a format; None: its costs are not known."""
    name = _BY_CACHE.get(kv)
    return PATHS[name] if name else None


def unpack_seconds(operator: Operator, gpu: GpuSpec) -> tuple[Array, Array] | None:
    """Return the seconds per call in the main loop, and of transforms before it: ``[n]`` both.

    None if the operator's format has no path, or the device's cores are not known.
    """
    path = format_path(operator.weights)
    rate = core_instructions_per_s(gpu)
    if path is None or rate is None or operator.kind not in ("gemm", "grouped_gemm"):
        return None
    elements = operator.weight_bytes / load_format(operator.weights).moved_bytes
    instructions = path.weight_instructions * elements * np.ceil(operator.rows / _TILE_ROWS)
    if path.sum_group:
        instructions = instructions + _SUM_INSTRUCTIONS / 2 * operator.flops / path.sum_group
    inner = operator.matrix[0] if operator.matrix and operator.kind == "gemm" else 0
    transform = path.row_flops * operator.rows * inner**1.5 / gpu.bf16_flop_per_s
    return instructions / rate, transform


class GemmSeconds(NamedTuple):
    """One GEMM's seconds by cause; `total` is the larger side."""

    multiply: float
    dequantize: float
    """Time in the main loop, during which tensor cores wait."""
    transform: float
    memory: float

    @property
    def total(self) -> float:
        """Seconds in all: multiplying waits for unpacking; both overlap with reading."""
        return max(self.multiply + self.dequantize, self.memory) + self.transform


def gemm_seconds(
    path: PrecisionPath, gpu: GpuSpec, rows: int, inner: int, outer: int
) -> GemmSeconds:
    """Price a rows x inner by inner x outer GEMM at the datasheet's rates: bounds, without
    efficiencies.

    Raises `ScenarioError` if the device lacks the unit, or its cores are needed and not known.
    """
    weights, activations = load_format(path.weights), load_format(path.activations)
    num_bytes = inner * outer * weights.moved_bytes + rows * outer * 2
    num_bytes += rows * inner * activations.moved_bytes
    return GemmSeconds(
        multiply=2.0 * rows * inner * outer / path_peak(path, gpu),
        dequantize=_dequantize_s(path, gpu, rows, inner, outer),
        transform=path.row_flops * rows * inner * inner**0.5 / gpu.bf16_flop_per_s,
        memory=num_bytes / gpu.hbm_bytes_per_s,
    )


def crossover_rows(path: PrecisionPath, other: PrecisionPath, gpu: GpuSpec) -> int | None:
    """Return the fewest rows of a large GEMM at which ``path`` is no longer the faster one.

    None: it stays the faster one up to 65,536 rows. The search doubles the rows, then bisects.
    """

    def slower(rows: int) -> bool:
        shape = (rows, 8192, 8192)
        return gemm_seconds(path, gpu, *shape).total >= gemm_seconds(other, gpu, *shape).total

    high = 1
    while not slower(high):
        high *= 2
        if high > 65_536:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if slower(middle) else (middle, high)
    return high


def _dequantize_s(path: PrecisionPath, gpu: GpuSpec, rows: int, inner: int, outer: int) -> float:
    instructions = path.weight_instructions * inner * outer * -(-rows // _TILE_ROWS)
    if path.sum_group:
        instructions += _SUM_INSTRUCTIONS * rows * outer * inner / path.sum_group
    if not instructions:
        return 0.0
    rate = core_instructions_per_s(gpu)
    if rate is None:
        raise ScenarioError(
            f"{gpu.name}: the rate of its cores beside the tensor cores is not known, which "
            f"{path.name} needs; kernel_curves.yaml lists those that are"
        )
    return instructions / rate
