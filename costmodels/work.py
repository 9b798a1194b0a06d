"""One operator of a step, as FLOPs and bytes, and the few shapes that operators come in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodels.formats import BF16_PEAK, ModelPrecision, load_format

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Array = NDArray[np.float64]
Kind = Literal[
    "gemm",
    "grouped_gemm",
    "elementwise",
    "attention",
    "sampling",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send",
]
EXCHANGES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""The kinds whose time is spent on links."""
FRACTION_BITS = 32
"""Bits behind the point of times in fixed point, so that sums of them are exact."""
HALF = 1 << (FRACTION_BITS - 1)
ONE = 1 << FRACTION_BITS


_AMOUNTS = ("rows", "flops", "weight_bytes", "state_bytes", "activation_bytes", "comm_bytes")


_Prices = TypeVar("_Prices", bound="DataclassInstance")


def slowed(prices: _Prices, factor: float, *names: str) -> _Prices:
    """Return a copy of compiled prices with the times in these fields multiplied by ``factor``.

    A field has integers, lists of them, None, or prices with a method ``slower``.
    """
    return replace(prices, **{name: _scaled(getattr(prices, name), factor) for name in names})


def _scaled(times: Any, factor: float) -> Any:
    if isinstance(times, int):
        return round(times * factor)
    if times is None or hasattr(times, "slower"):
        return times and times.slower(factor)
    return type(times)([_scaled(time, factor) for time in times])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The participants of an exchange between ranks."""

    ranks: int
    in_node: int
    """Ranks among them that share a fabric domain."""
    mode: Literal["", "low_latency", "throughput"] = ""
    """Mode of an all-to-all; empty for other exchanges."""
    copies: float = 1.0
    """Copies of each token in an all-to-all, one per expert it goes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator, at ``n`` batch sizes. All arrays are float64 ``[n]`` and per call."""

    name: str
    kind: Kind
    calls: int
    """Number of calls per step."""
    rows: Array
    """Rows of the left matrix (for a grouped GEMM: rows per expert)."""
    flops: Array
    weight_bytes: Array
    state_bytes: Array
    activation_bytes: Array
    comm_bytes: Array
    launches: int = 1
    """Kernels per call, each with its fixed time."""
    peak: str = BF16_PEAK
    """The compute peak it runs at, a field of `GpuSpec`."""
    weights: str = "bfloat16"
    """The format its matrix is stored in."""
    matrix: tuple[int, int] | None = None
    """Inner and outer size of a GEMM's right matrix; of a grouped one, of one expert's."""
    exchange: Exchange | None = None
    """Participants of an exchange; None for an all-reduce over all tensor-parallel ranks in one
    fabric domain."""
    parts: tuple[tuple[str, float], ...] = ()
    """Name and bytes per row of each of several elementwise kernels priced as one."""

    @property
    def is_fp8(self) -> bool:
        """Whether its matrices are multiplied in fp8."""
        return self.peak == "fp8_flop_per_s"

    def at(self, places: NDArray[np.int64]) -> Operator:
        """Return the operator at these of its batch sizes."""
        return replace(self, **{name: getattr(self, name)[places] for name in _AMOUNTS})


def linear(
    name: str,
    calls: int,
    inner: int,
    outer: int,
    rows: Array,
    precision: ModelPrecision,
    weights: str,
    *,
    copies: int = 1,
) -> Operator:
    """Return a GEMM by a matrix stored in ``weights``; its input may be quantized, its output never
    is.

    ``copies`` is the number of such matrices side by side, each with its own input (grouped heads).
    """
    stored, multiplied = precision.matrix(weights)
    row_bytes = inner * multiplied.moved_bytes + outer * precision.dtype_bytes
    return operator(
        name,
        "gemm",
        calls,
        rows,
        flops=2.0 * copies * inner * outer * rows,
        # Without rows there is no call, and the weights stay unread.
        weight_bytes=np.where(rows > 0, copies * inner * outer * stored.moved_bytes, 0.0),
        activation_bytes=float(copies * row_bytes) * rows,
        peak=multiplied.peak,
        weights=stored.name,
        matrix=(inner, copies * outer),
    )


def plain_gemm(
    name: str, calls: int, inner: int, outer: int, rows: Array, precision: ModelPrecision
) -> Operator:
    """Return a GEMM by a matrix that is never quantized."""
    return linear(name, calls, inner, outer, rows, precision, precision.dtype)


def elementwise(
    name: str,
    calls: int,
    bytes_per_row: float,
    rows: Array,
    launches: int = 1,
    parts: tuple[tuple[str, float], ...] = (),
) -> Operator:
    """Return kernels that read and write ``bytes_per_row`` together; ``parts`` as in `Operator`."""
    return operator(
        name,
        "elementwise",
        calls,
        rows,
        activation_bytes=float(bytes_per_row) * rows,
        launches=launches,
        parts=parts,
    )


def all_reduce(name: str, calls: int, bytes_per_row: float, ranks: int, rows: Array) -> Operator:
    """Return a sum over all ranks: a ring moves 2 (n - 1) / n of its input over every link."""
    return operator(
        name, "all_reduce", calls, rows, comm_bytes=2 * (ranks - 1) / ranks * bytes_per_row * rows
    )


def attention_launch(calls: int, rows: Array, launches: int = 1) -> Operator:
    """Return an attention kernel's launch, paid in every step; its work depends on contexts."""
    return operator("attention", "attention", calls, rows, launches=launches)


def converted(calls: int, width: int, rows: Array, precision: ModelPrecision) -> list[Operator]:
    """Return the conversion of attention's output for the matrix after it; empty in 16 bits.

    Norms and activations write the narrow format directly.
    """
    _, multiplied = precision.matrix(precision.attention)
    if multiplied.bits >= 16:
        return []
    narrow_bytes = load_format(multiplied.name).bits / 8
    return [elementwise("quantise", calls, (precision.dtype_bytes + narrow_bytes) * width, rows)]


def operator(
    name: str,
    kind: Kind,
    calls: int,
    rows: Array,
    *,
    flops: Array | None = None,
    weight_bytes: Array | None = None,
    state_bytes: Array | None = None,
    activation_bytes: Array | None = None,
    comm_bytes: Array | None = None,
    launches: int = 1,
    peak: str = BF16_PEAK,
    weights: str = "bfloat16",
    matrix: tuple[int, int] | None = None,
    exchange: Exchange | None = None,
    parts: tuple[tuple[str, float], ...] = (),
) -> Operator:
    """Return an operator whose unnamed parts are zero."""
    none = np.zeros_like(rows)
    return Operator(
        name=name,
        kind=kind,
        calls=calls,
        rows=rows,
        flops=none if flops is None else flops,
        weight_bytes=none if weight_bytes is None else weight_bytes,
        state_bytes=none if state_bytes is None else state_bytes,
        activation_bytes=none if activation_bytes is None else activation_bytes,
        comm_bytes=none if comm_bytes is None else comm_bytes,
        launches=launches,
        peak=peak,
        weights=weights,
        matrix=matrix,
        exchange=exchange,
        parts=parts,
    )
