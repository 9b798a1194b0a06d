"""The small operators in plain torch, for processors; arguments as in `elementwise_triton`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_FP8_MOST = 448.0


def add_rms_norm(x: Any, residual: Any, weight: Any, total: Any, out: Any) -> None:
    """Compute total = x + residual and out = total over its root mean square, times weight."""
    torch.add(x, residual, out=total)
    out.copy_(functional.rms_norm(total, (x.shape[1],), weight, 1e-6))


def residual_add(x: Any, residual: Any, out: Any) -> None:
    """Compute out = x + residual."""
    torch.add(x, residual, out=out)


def silu_mul(x: Any, out: Any) -> None:
    """Compute out = silu(x's first half) * its second half."""
    gate, up = x.chunk(2, dim=1)
    torch.mul(functional.silu(gate), up, out=out)


def rotary(x: Any, positions: Any, cos: Any, sin: Any, out: Any) -> None:
    """Rotate the two halves of each head."""
    half = cos.shape[1]
    first, second = x.view(len(x), -1, 2, half).unbind(2)
    turned = out.view(len(x), -1, 2, half)
    c, s = cos[positions][:, None, :], sin[positions][:, None, :]
    turned[:, :, 0] = first * c - second * s
    turned[:, :, 1] = second * c + first * s


def quantise_fp8(x: Any, out: Any, scales: Any) -> None:
    """Quantize to fp8 with one scale per row."""
    scales.copy_(x.abs().amax(1, keepdim=True).clamp(min=1e-12) / _FP8_MOST)
    out.copy_((x / scales).clamp(-_FP8_MOST, _FP8_MOST))


def quantise_fp8_block(x: Any, out: Any, scales: Any) -> None:
    """Quantize to fp8 with one scale per group of a row."""
    quantise_fp8(
        x.view(scales.numel(), -1), out.view(scales.numel(), -1), scales.view(scales.numel(), 1)
    )


def kv_write(x: Any, slots: Any, keys: Any, values: Any) -> None:
    """Write the two halves of each row of ``x`` to a slot of ``keys`` and ``values``."""
    key, value = x.chunk(2, dim=1)
    keys.index_copy_(0, slots, key)
    values.index_copy_(0, slots, value)
