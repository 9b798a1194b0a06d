"""Measure matrix products through torch (cuBLAS on NVIDIA): out [m, n] = a [m, k] times w [n, k]^T.

Kernel ``torch`` has both operands in one format. ``fp8`` has one scale per tensor (activations'
known beforehand) and fast accumulation. ``int8`` returns int32, to be scaled by the next operator.
With ``fp8_block`` weights there is one scale per 128 numbers of a row of activations and per 128 x
128 weights. Kernel ``torch_row`` is ``fp8`` with one scale per row of both operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.gemm_shapes import (
    FEW_ROWS,
    FEWEST_ROWS,
    HALF_ROWS,
    LM_HEADS,
    NARROW,
    SEQUENCES,
    Grid,
    bfloat16_grid,
    cpu_grid,
    llama_8b,
)
from calibrate.measure.machine import streamed_l2_bytes

TOLERANCE = {
    "float32": 1e-5,
    "bfloat16": 1e-2,
    "fp8": 2e-2,
    "fp8_block": 2e-2,
    "int8": 1e-5,
}
_BLOCK = 128
_INPUT_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1, "int8": 1}
_OUTPUT_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 2, "int8": 4}


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield bfloat16 over all matrices, and the narrow formats over those that are served in
    them."""
    if device == "cpu":
        for number in ("float32", "bfloat16"):
            yield from _grid("torch", number, number, cpu_grid(quick))
    elif quick:
        layer = llama_8b(1)
        grid = [(layer, HALF_ROWS), ([LM_HEADS[0]], SEQUENCES)]
        yield from _grid("torch", "bfloat16", "bfloat16", grid)
        for names, narrow in NARROW.items():
            matrices, _ = narrow[0]
            yield from _grid(*names, [(matrices[2:4], FEW_ROWS)])
    else:
        yield from _grid("torch", "bfloat16", "bfloat16", bfloat16_grid())
        for names, narrow in NARROW.items():
            yield from _grid(*names, narrow)


def _grid(kernel: str, activations: str, weights: str, grid: Grid) -> Iterator[Case]:
    """Yield each shape once, smallest matrices first."""
    shapes = {(matrix, m) for matrices, rows in grid for matrix in matrices for m in rows}
    for matrix, m in sorted(shapes, key=lambda shape: (shape[0].n * shape[0].k, shape)):
        if m >= FEWEST_ROWS.get(weights, 1):
            yield Case(
                family="gemm",
                kernel=kernel,
                formats={"activations": activations, "weights": weights},
                shape={"m": m, "n": matrix.n, "k": matrix.k},
            )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs, and bytes of both inputs and the output without scales."""
    m, n, k = _sizes(case)
    number = case.formats["activations"]
    num_bytes = (m * k + n * k) * _INPUT_BYTES[number] + m * n * _OUTPUT_BYTES[number]
    return 2.0 * m * n * k, float(num_bytes)


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare random inputs in more copies than a cache holds."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    flops, num_bytes = work(case)
    make = _MAKERS[case.kernel, case.formats["weights"]]
    products = [
        make(_sizes(case), device, draw)
        for _ in range(num_copies(num_bytes, streamed_l2_bytes(device)))
    ]
    call, out, reference = products[0]

    def error() -> float:
        call()
        return relative_error(out, reference())

    calls = [product[0] for product in products]
    return Prepared(calls=calls, error=error, flops=flops, num_bytes=num_bytes)


Sizes = tuple[int, int, int]
# The call, its output, and a function that computes the same product in float32.
Product = tuple[Callable[[], object], Any, Callable[[], Any]]


def _sizes(case: Case) -> Sizes:
    return int(case.shape["m"]), int(case.shape["n"]), int(case.shape["k"])


def _plain(number: str) -> Callable[[Sizes, str, Any], Product]:
    def make(sizes: Sizes, device: str, draw: Any) -> Product:
        import torch

        m, n, k = sizes
        dtype = getattr(torch, number)
        a, w = (torch.randn(rows, k, device=device, dtype=dtype, generator=draw) for rows in (m, n))
        out = torch.empty(m, n, device=device, dtype=dtype)
        transposed = w.t()
        wide = torch.float64 if number == "float32" else torch.float32
        return (
            lambda: torch.mm(a, transposed, out=out),
            out,
            lambda: a.to(wide) @ w.to(wide).t(),
        )

    return make


def _fp8(scales_of: Callable[[int, str, Any], Any]) -> Callable[[Sizes, str, Any], Product]:
    """Return a maker of fp8 products. ``scales_of(rows, device, draw)`` returns scales [rows,
    1], or one for all."""

    def make(sizes: Sizes, device: str, draw: Any) -> Product:
        import torch

        m, n, k = sizes
        a, w = (_random_fp8(rows, k, device, draw) for rows in (m, n))
        scale_a, scale_w = (scales_of(rows, device, draw) for rows in (m, n))
        out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        transposed, row_w = w.t(), scale_w.t()

        def call() -> object:
            return torch._scaled_mm(
                a,
                transposed,
                scale_a,
                row_w,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
                out=out,
            )

        return call, out, lambda: (a.float() * scale_a) @ (w.float() * scale_w).t()

    return make


def _fp8_block(sizes: Sizes, device: str, draw: Any) -> Product:
    import torch
    from torch.nn.functional import ScalingType

    m, n, k = sizes
    a, w = (_random_fp8(rows, k, device, draw) for rows in (m, n))
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    blocks_k, blocks_n = -(-k // _BLOCK), -(-n // _BLOCK)
    # The layouts that torch requires: scales of a row are m apart, and those of w are padded to 4
    # along k.
    scale_a = _scales((blocks_k, m), device, draw).t()
    scale_w = _scales((blocks_n, -(-blocks_k // 4) * 4), device, draw)
    transposed, scale_t = w.t(), scale_w.t()
    recipes = [ScalingType.BlockWise1x128.value], [ScalingType.BlockWise128x128.value]

    def call() -> object:
        return torch._scaled_mm_v2(
            a,
            transposed,
            [scale_a],
            recipes[0],
            [],
            [scale_t],
            recipes[1],
            [],
            None,
            torch.bfloat16,
            out=out,
        )

    def reference() -> Any:
        rows = scale_a.repeat_interleave(_BLOCK, 1)[:, :k]
        blocks = scale_w.repeat_interleave(_BLOCK, 0)[:n].repeat_interleave(_BLOCK, 1)[:, :k]
        return (a.float() * rows) @ (w.float() * blocks).t()

    return call, out, reference


def _int8(sizes: Sizes, device: str, draw: Any) -> Product:
    import torch

    m, n, k = sizes
    a, w = (
        torch.randint(-127, 128, (rows, k), device=device, dtype=torch.int8, generator=draw)
        for rows in (m, n)
    )
    out = torch.empty(m, n, device=device, dtype=torch.int32)
    transposed = w.t()
    return (
        lambda: torch._int_mm(a, transposed, out=out),
        out,
        lambda: a.float() @ w.float().t(),
    )


def _random_fp8(rows: int, k: int, device: str, draw: Any) -> Any:
    import torch

    values = torch.randn(rows, k, device=device, dtype=torch.float32, generator=draw)
    return values.to(torch.float8_e4m3fn)


def _scales(shape: tuple[int, ...], device: str, draw: Any) -> Any:
    import torch

    return 0.5 + torch.rand(shape, device=device, dtype=torch.float32, generator=draw)


# Makers by kernel and format of the weights.
_MAKERS: dict[tuple[str, str], Callable[[Sizes, str, Any], Product]] = {
    ("torch", "float32"): _plain("float32"),
    ("torch", "bfloat16"): _plain("bfloat16"),
    ("torch", "fp8"): _fp8(lambda rows, device, draw: _scales((1, 1), device, draw)),
    ("torch_row", "fp8"): _fp8(lambda rows, device, draw: _scales((rows, 1), device, draw)),
    ("torch", "fp8_block"): _fp8_block,
    ("torch", "int8"): _int8,
}
