"""Triton kernels of the small operators between matrix products; each reads and writes once.

Tensors are [rows, width], contiguous; sums and scales are computed in float32.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_FP8_MOST = tl.constexpr(448.0)
"""The largest number of float8_e4m3fn."""
_HEADS = 16
_GROUPS = 16
_FLAT = 2048


@triton.jit
def _add_rms_norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, block)
    inside = at < width
    summed = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    summed += tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row + at, summed.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(summed * summed, axis=0) / width + eps)
    normed = summed * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _residual_add(
    x: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(
    x: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    row = tl.program_id(0).to(tl.int64) * width
    gate = tl.load(x + 2 * row + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + 2 * row + width + at, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row + at, product.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotary(
    x: tl.tensor,
    positions: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    half_dim: tl.constexpr,
    some_heads: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * some_heads + tl.arange(0, some_heads)
    pair = tl.arange(0, half_dim)
    turn = tl.load(positions + token) * half_dim + pair
    c = tl.load(cos + turn).to(tl.float32)[None, :]
    s = tl.load(sin + turn).to(tl.float32)[None, :]
    at = (token * heads + head[:, None]) * (2 * half_dim) + pair[None, :]
    inside = (head < heads)[:, None] & (pair >= 0)[None, :]
    first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + at + half_dim, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (first * c - second * s).to(out.dtype.element_ty), mask=inside)
    tl.store(out + at + half_dim, (second * c + first * s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _quantise_fp8(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    width: tl.tensor,
    block: tl.constexpr,
) -> None:
    index = tl.program_id(0)
    row = index.to(tl.int64) * width
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-12) / _FP8_MOST
    quantized = tl.minimum(tl.maximum(values / scale, -_FP8_MOST), _FP8_MOST)
    tl.store(out + row + at, quantized.to(out.dtype.element_ty), mask=inside)
    tl.store(scales + index, scale)


@triton.jit
def _quantise_fp8_block(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    groups: tl.tensor,
    some_groups: tl.constexpr,
    group_size: tl.constexpr,
) -> None:
    group = tl.program_id(1) * some_groups + tl.arange(0, some_groups)
    first = tl.program_id(0).to(tl.int64) * groups
    lane = tl.arange(0, group_size)
    at = (first + group[:, None]) * group_size + lane[None, :]
    inside = (group < groups)[:, None] & (lane >= 0)[None, :]
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=1), 1e-12) / _FP8_MOST
    quantized = tl.minimum(tl.maximum(values / scale[:, None], -_FP8_MOST), _FP8_MOST)
    tl.store(out + at, quantized.to(out.dtype.element_ty), mask=inside)
    tl.store(scales + first + group, scale, mask=group < groups)


@triton.jit
def _kv_write(
    x: tl.tensor,
    slots: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    half: tl.tensor,
    block: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    at = tl.arange(0, block)
    inside = at < half
    row = token * (2 * half) + at
    key = tl.load(x + row, mask=inside, other=0.0)
    value = tl.load(x + row + half, mask=inside, other=0.0)
    tl.store(keys + slot * half + at, key, mask=inside)
    tl.store(values + slot * half + at, value, mask=inside)


def add_rms_norm(x: Any, residual: Any, weight: Any, total: Any, out: Any) -> None:
    """Compute total = x + residual and out = total over its root mean square, times weight."""
    rows, width = x.shape
    block, warps = _row_block(width)
    _add_rms_norm[rows,](x, residual, weight, total, out, width, 1e-6, block=block, num_warps=warps)


def residual_add(x: Any, residual: Any, out: Any) -> None:
    """Compute out = x + residual."""
    count = x.numel()
    _residual_add[triton.cdiv(count, _FLAT),](x, residual, out, count, block=_FLAT)


def silu_mul(x: Any, out: Any) -> None:
    """Compute out = silu(x's first half) * its second half; ``x`` is [rows, 2 width]."""
    rows, width = out.shape
    block = min(_FLAT, triton.next_power_of_2(width))
    _silu_mul[rows, triton.cdiv(width, block)](x, out, width, block=block)


def rotary(x: Any, positions: Any, cos: Any, sin: Any, out: Any) -> None:
    """Rotate the two halves of each head; cos and sin are [positions, head_dim / 2]."""
    rows, width = x.shape
    half = cos.shape[1]
    heads = width // (2 * half)
    grid = (rows, triton.cdiv(heads, _HEADS))
    _rotary[grid](x, positions, cos, sin, out, heads, half_dim=half, some_heads=_HEADS)


def quantise_fp8(x: Any, out: Any, scales: Any) -> None:
    """Quantize to fp8 with one scale per row; ``scales`` is [rows, 1]."""
    rows, width = x.shape
    block, warps = _row_block(width)
    _quantise_fp8[rows,](x, out, scales, width, block=block, num_warps=warps)


def quantise_fp8_block(x: Any, out: Any, scales: Any) -> None:
    """Quantize to fp8 with one scale per group of a row; ``scales`` is [rows, groups]."""
    rows, groups = scales.shape
    grid = (rows, triton.cdiv(groups, _GROUPS))
    group = x.shape[1] // groups
    _quantise_fp8_block[grid](x, out, scales, groups, some_groups=_GROUPS, group_size=group)


def kv_write(x: Any, slots: Any, keys: Any, values: Any) -> None:
    """Write the two halves of each row of ``x`` to a slot of ``keys`` and ``values``, [slots,
    width / 2]."""
    rows, width = x.shape
    half = width // 2
    block = max(1024, triton.next_power_of_2(half))
    _kv_write[rows,](x, slots, keys, values, half, block=block)


def _row_block(width: int) -> tuple[int, int]:
    """Return the block size for a whole row per program, and its warps: at most 32 numbers per
    thread."""
    block = triton.next_power_of_2(width)
    return block, min(32, max(4, block // 512))
