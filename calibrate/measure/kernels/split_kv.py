"""Split attention: how keys are cut among programs, and the pass that joins their results."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

MAX_SPLITS = 128
_CHUNK = 16
_LEAD_TILES = 1
"""What a program's start and end cost, in tiles."""
_JOIN_TILES = 2
"""What joining costs."""
_SMS = 132


class Splits(NamedTuple):
    """The tiles of one row of work, cut evenly: the last split may have fewer."""

    splits: int
    tiles_a_split: int


def split_tiles(
    rows_of_work: int, tiles: int, *, resident: int, splits: int | None = None
) -> Splits:
    """The cut that finishes first. ``resident``: programs on one multiprocessor at a time.

    All programs of a wave are taken to advance a tile at a time. ``splits``: as many, or fewer
    where some would be empty, whatever it costs.
    """
    cuts = {
        -(-tiles // wanted) for wanted in ([splits] if splits else range(1, min(tiles, MAX_SPLITS) + 1))
    }
    options = [Splits(-(-tiles // a_split), a_split) for a_split in cuts]

    def cost(cut: Splits) -> tuple[int, int]:
        waves = -(-rows_of_work * cut.splits // (_SMS * resident))
        join = _JOIN_TILES if cut.splits > 1 else 0
        return waves * (cut.tiles_a_split + _LEAD_TILES) + join, cut.splits

    return min(options, key=cost)


def partial_buffers(rows: int, splits: int, head_dim: int, device: str) -> tuple[Any, Any]:
    """Room for each split's result ([rows, splits, head_dim] float32) and log-sum-exp."""
    import torch

    rows = rows if splits > 1 else 1
    partial = torch.empty(rows, splits, head_dim, device=device, dtype=torch.float32)
    return partial, torch.empty(rows, splits, device=device, dtype=torch.float32)


def combine(partial: Any, lse: Any, out: Any) -> None:
    """Writes what the splits of ``partial_buffers`` come to; ``out``: [..., head_dim]."""
    rows, splits, head_dim = partial.shape
    combine_kernel[(rows,)](
        partial,
        lse,
        out,
        splits,
        HEAD_DIM=head_dim,
        CHUNK=_CHUNK,
        MAX_SPLITS=MAX_SPLITS,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["splits"])
def combine_kernel(
    partial: tl.tensor,
    lse: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
) -> None:
    """One row a program; ``lse`` in base 2, minus infinity for a split that read nothing."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM)
    every = tl.arange(0, MAX_SPLITS)
    lse_row = lse + row * splits
    peak = tl.max(tl.load(lse_row + every, mask=every < splits, other=-float("inf")), 0)
    total = tl.zeros((CHUNK,), tl.float32)
    acc = tl.zeros((HEAD_DIM,), tl.float32)
    for at in range(0, splits, CHUNK):
        some = at + tl.arange(0, CHUNK)
        is_split = some < splits
        weight = tl.exp2(tl.load(lse_row + some, mask=is_split, other=-float("inf")) - peak)
        places = (row * splits + some)[:, None] * HEAD_DIM + dims[None, :]
        part = tl.load(partial + places, mask=is_split[:, None], other=0.0)
        acc += tl.sum(weight[:, None] * part, 0)
        total += weight
    tl.store(out + row * HEAD_DIM + dims, (acc / tl.sum(total, 0)).to(out.dtype.element_ty))
