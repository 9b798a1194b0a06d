"""Measure matrix products with int4 weights and 16-bit activations: family gemm, kernel
triton_w4a16.

Groups of 128 numbers along k share a 16-bit scale, and zero is 8 (symmetric), as GPTQ and AWQ
checkpoints are served. Products with few rows are split along k, and summed by a second kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.gemm_shapes import (
    BETWEEN_ROWS,
    HALF_ROWS,
    ROWS,
    STEP_ROWS,
    llama_8b,
    llama_70b,
)
from calibrate.measure.kernels.split_plan import split_tiles
from calibrate.measure.machine import l2_bytes

TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "int4": 0.0}
_GROUP = 128
_BLOCK_N = 128
_MOST_ROWS = 4096
_FEWEST_GROUPS = 4
"""Fewest groups of 128 per split; with fewer there is nothing to prefetch."""
_SUMMED = 512


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield Llama-3.1-8B, and 70B at TP 4; nothing on a CPU."""
    if device == "cpu":
        return
    grid = [(llama_8b(1), ROWS + STEP_ROWS), (llama_70b(4), HALF_ROWS + BETWEEN_ROWS)]
    shapes = [
        (matrix, m)
        for matrices, rows in (grid[:1] if quick else grid)
        for matrix in (matrices[2:] if quick else matrices)
        for m in rows[:: 6 if quick else 1]
        if m <= _MOST_ROWS
    ]
    for matrix, m in sorted(shapes, key=lambda shape: (shape[0].n * shape[0].k, shape)):
        yield Case(
            family="gemm",
            kernel="triton_w4a16",
            formats={"activations": "bfloat16", "weights": "int4"},
            shape={"m": m, "n": matrix.n, "k": matrix.k},
        )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs, and bytes of rows, weights with their scales, and output."""
    m, n, k = (int(case.shape[name]) for name in "mnk")
    return 2.0 * m * n * k, 2.0 * m * (k + n) + n * k / 2 + 2 * n * k / _GROUP


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile sizes, launch options and splits of a product."""

    block_m: int
    num_warps: int
    num_stages: int
    groups_per_split: int
    splits: int


# Rows of a tile, warps, stages, and programs per multiprocessor with them.
_TILES = ((16, 4, 5, 4), (32, 4, 4, 3), (64, 4, 4, 2), (128, 8, 4, 1))


def tiling(m: int, n: int, k: int) -> Tiling:
    """Choose tiles that hold all rows up to 128, and splits if tiles alone leave multiprocessors
    idle."""
    block_m, num_warps, num_stages, resident = next(
        tile for tile in _TILES if tile[0] >= min(m, 128)
    )
    tiles = n // _BLOCK_N * -(-m // block_m)
    # Sums are half the work of combining attention, for which the plan is made.
    cut = split_tiles(
        tiles, k // _GROUP, resident=resident, joined=m * n // 2, fewest=_FEWEST_GROUPS
    )
    return Tiling(block_m, num_warps, num_stages, cut.tiles_per_split, cut.splits)


@dataclass(frozen=True, slots=True)
class Product:
    """Inputs of a product: rows [m, k], words [k / 128, n, 32] int16 (see `w4a16_triton`), scales
    [k / 128, n].

    ``partial`` [splits, m, n] float32 is None if the product is not split.
    """

    rows: Any
    words: Any
    scales: Any
    out: Any
    partial: Any

    def launch(self) -> None:
        """Run the product once."""
        from calibrate.measure.kernels.w4a16_triton import sum_splits, w4a16_matmul

        (m, k), n = self.rows.shape, self.out.shape[1]
        cut = tiling(m, n, k)
        is_split = self.partial is not None
        w4a16_matmul[(n // _BLOCK_N * -(-m // cut.block_m), cut.splits)](
            *(self.rows, self.words, self.scales, self.partial if is_split else self.out),
            *(m, n // _BLOCK_N, k // _GROUP, cut.groups_per_split, cut.block_m, _BLOCK_N, 8),
            num_warps=cut.num_warps,
            num_stages=cut.num_stages,
        )
        if is_split:
            blocks = m * n // _SUMMED
            sum_splits[(blocks,)](self.partial, self.out, cut.splits, blocks, _SUMMED)

    def reference(self) -> Any:
        """Compute the product in float32."""
        import torch

        groups, n, _ = self.words.shape
        shifts = torch.arange(0, 16, 4, device=self.words.device, dtype=torch.int32)
        numbers = (self.words.int()[:, :, None, :] >> shifts[:, None] & 15) - 8
        weights = numbers.reshape(groups, n, _GROUP).float() * self.scales.float()[..., None]
        return self.rows.float() @ weights.transpose(0, 1).reshape(n, groups * _GROUP).t()


def make_product(m: int, n: int, k: int, dtype: Any, device: str, generator: Any) -> Product:
    """Return random inputs; n is a multiple of 128 and so is k."""
    import torch

    if n % _BLOCK_N or k % _GROUP or (m * n % _SUMMED and tiling(m, n, k).splits > 1):
        raise ValueError(f"n {n} and k {k} must be multiples of 128, and m n of {_SUMMED}")
    groups, splits = k // _GROUP, tiling(m, n, k).splits
    size = (groups, n, _GROUP // 4)
    words = torch.randint(-(2**15), 2**15, size, device=device, generator=generator)
    scales = torch.rand((groups, n), device=device, generator=generator)
    return Product(
        rows=torch.randn((m, k), device=device, dtype=dtype, generator=generator),
        words=words.to(torch.int16),
        scales=((0.5 + scales) * k**-0.5).to(dtype),
        out=torch.empty((m, n), device=device, dtype=dtype),
        partial=torch.empty((splits, m, n), device=device) if splits > 1 else None,
    )


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare random inputs in more copies than a cache holds."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    m, n, k = (int(case.shape[name]) for name in "mnk")
    flops, num_bytes = work(case)
    products = [
        make_product(m, n, k, torch.bfloat16, device, generator)
        for _ in range(num_copies(num_bytes, l2_bytes(device)))
    ]

    def error() -> float:
        products[0].launch()
        return relative_error(products[0].out, products[0].reference())

    return Prepared(
        calls=[product.launch for product in products],
        error=error,
        flops=flops,
        num_bytes=num_bytes,
    )
