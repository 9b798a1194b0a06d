"""Combine the results of programs that have each read a part of the keys."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from calibrate.measure.kernels.split_plan import MAX_SPLITS

_CHUNK = 16


def partial_buffers(rows: int, splits: int, head_dim: int, device: str) -> tuple[Any, Any]:
    """Allocate each split's result ([rows, splits, head_dim] float32) and log-sum-exp."""
    import torch

    rows = rows if splits > 1 else 1
    partial = torch.empty(rows, splits, head_dim, device=device, dtype=torch.float32)
    return partial, torch.empty(rows, splits, device=device, dtype=torch.float32)


def combine(partial: Any, lse: Any, out: Any) -> None:
    """Combine the splits of ``partial_buffers`` into ``out`` [..., head_dim]."""
    rows, splits, head_dim = partial.shape
    combine_kernel[(rows,)](
        partial,
        lse,
        out,
        splits,
        head_dim=head_dim,
        chunk=_CHUNK,
        max_splits=MAX_SPLITS,
        # One warp per row of 128 numbers, so that sums over splits stay in a thread.
        num_warps=num_warps_of(head_dim),
    )


def num_warps_of(head_dim: int) -> int:
    """Return the warps of a program that combines one row."""
    return max(1, head_dim // 128)


@triton.jit(do_not_specialize=["splits"])
def combine_kernel(
    partial: tl.tensor,
    lse: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    head_dim: tl.constexpr,
    chunk: tl.constexpr,
    max_splits: tl.constexpr,
) -> None:
    """Combine one row per program; ``lse`` is in base 2, minus infinity for a split that read no
    keys."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, head_dim)
    every = tl.arange(0, max_splits)
    lse_row = lse + row * splits
    peak = tl.max(tl.load(lse_row + every, mask=every < splits, other=-float("inf")), 0)
    total = tl.zeros((chunk,), tl.float32)
    acc = tl.zeros((head_dim,), tl.float32)
    for at in range(0, splits, chunk):
        some = at + tl.arange(0, chunk)
        is_split = some < splits
        weight = tl.exp2(tl.load(lse_row + some, mask=is_split, other=-float("inf")) - peak)
        places = (row * splits + some)[:, None] * head_dim + dims[None, :]
        part = tl.load(partial + places, mask=is_split[:, None], other=0.0)
        acc += tl.sum(weight[:, None] * part, 0)
        total += weight
    tl.store(out + row * head_dim + dims, (acc / tl.sum(total, 0)).to(out.dtype.element_ty))
