"""Causal attention of prompts in Triton, after FlashAttention 2: a cached prefix, GQA, a window.

The query heads of a KV head lie side by side in a tile, so that short prompts fill it and few tiles
of keys need a mask. If that gives too few programs, keys are split as in decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from calibrate.measure.kernels.split_kv import combine, partial_buffers
from calibrate.measure.kernels.split_plan import SMS, split_tiles

_LEAST_PEAK = tl.constexpr(-1e30)
"""Start of the maximum, below any score. Masked scores are minus infinity instead: a GPU fuses
"scores times scale, minus their own maximum" into one operation, which leaves the rounding error
of the maximum, and for -1e30 that is beyond the range of `exp2`."""


@triton.jit
def _attend(
    acc: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    tile_q: tl.tensor,
    positions: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    length: tl.tensor,
    kv_heads: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    head_dim: tl.constexpr,
    keys_per_tile: tl.constexpr,
    is_masked: tl.constexpr,
    has_window: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Accumulate the keys from ``begin`` (a tile's start) to ``end``."""
    dims = tl.arange(0, head_dim)
    for at in range(begin, end, keys_per_tile):
        places = at + tl.arange(0, keys_per_tile)
        # Past the end the last key is read again, and masked.
        rows = tl.minimum(places, length - 1) if is_masked else places
        offsets = (rows * kv_heads)[:, None] * head_dim + dims[None, :]
        tile_k = tl.load(keys + offsets)
        scores = tl.dot(tile_q, tl.trans(tile_k))
        if is_masked:
            is_seen = places[None, :] <= positions[:, None]
            if has_window:
                is_seen = is_seen & (places[None, :] > positions[:, None] - window)
            scores = tl.where(is_seen, scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        tile_v = tl.load(values + offsets)
        acc = tl.dot(weights.to(tile_v.dtype), tile_v, acc * shrink[:, None])
        peak = new_peak
    return acc, peak, total


@triton.jit(do_not_specialize=["new", "prefix", "kv_heads", "group", "window", "tiles_per_split"])
def prefill_kernel(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    lse: tl.tensor,
    scale: tl.tensor,
    new: tl.tensor,
    prefix: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    window: tl.tensor,
    tiles_per_split: tl.tensor,
    head_dim: tl.constexpr,
    rows_per_tile: tl.constexpr,
    keys_per_tile: tl.constexpr,
    has_window: tl.constexpr,
) -> None:
    """Compute one split for a tile of queries. Grid: (sequences times KV heads, tiles, splits); the
    first program takes the last tile of queries.

    ``query``, ``out``: [seqs, new, kv_heads * group, head_dim]; ``keys``, ``values``: [seqs, prefix
    + new, kv_heads, head_dim]; ``scale``: factor of the scores, in base 2.
    """
    seq, head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    # Later queries see more keys: they start first.
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * rows_per_tile
    split, splits = tl.program_id(2), tl.num_programs(2)
    length = prefix + new
    dims = tl.arange(0, head_dim)
    rows = first_row + tl.arange(0, rows_per_tile)
    is_row = rows < new * group
    clipped = tl.minimum(rows, new * group - 1)
    tokens = clipped // group
    out_rows = (seq.to(tl.int64) * new + tokens) * (kv_heads * group) + head * group
    out_rows += clipped % group
    tile_q = tl.load(query + out_rows[:, None] * head_dim + dims[None, :])
    positions = prefix + tokens
    first = prefix + first_row // group
    last = prefix + tl.minimum((first_row + rows_per_tile - 1) // group, new - 1)
    kv_base = (seq.to(tl.int64) * length * kv_heads + head) * head_dim

    # Tiles that all rows see wholly lie between those where a window and the causal mask begin.
    begin = 0
    all_begin = 0
    if has_window:
        begin = tl.maximum(first - window + 1, 0) // keys_per_tile * keys_per_tile
        all_begin = (
            (tl.maximum(last - window + 1, 0) + keys_per_tile - 1) // keys_per_tile * keys_per_tile
        )
    own_begin = begin + split * tiles_per_split * keys_per_tile
    own_end = tl.minimum(last + 1, own_begin + tiles_per_split * keys_per_tile)
    all_end = tl.minimum((first + 1) // keys_per_tile * keys_per_tile, own_end)
    all_begin = tl.maximum(all_begin, own_begin)

    # Finite, as a row may see nothing of its first tiles: minus infinity less itself is no number.
    peak = tl.full((rows_per_tile,), _LEAST_PEAK, tl.float32)
    total = tl.zeros((rows_per_tile,), tl.float32)
    acc = tl.zeros((rows_per_tile, head_dim), tl.float32)
    if has_window:
        acc, peak, total = _attend(
            acc, peak, total, tile_q, positions, keys + kv_base, values + kv_base,
            own_begin, tl.minimum(all_begin, own_end), length, kv_heads, window, scale,
            head_dim, keys_per_tile, True, True,
        )  # fmt: skip
    acc, peak, total = _attend(
        acc, peak, total, tile_q, positions, keys + kv_base, values + kv_base,
        all_begin, all_end, length, kv_heads, window, scale,
        head_dim, keys_per_tile, False, has_window,
    )  # fmt: skip
    acc, peak, total = _attend(
        acc, peak, total, tile_q, positions, keys + kv_base, values + kv_base,
        tl.maximum(all_begin, all_end), own_end, length, kv_heads, window, scale,
        head_dim, keys_per_tile, True, has_window,
    )  # fmt: skip

    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    if splits == 1:
        places = out_rows[:, None] * head_dim + dims[None, :]
        tl.store(out + places, acc.to(out.dtype.element_ty), mask=is_row[:, None])
    else:
        parts = out_rows * splits + split
        tl.store(partial + parts[:, None] * head_dim + dims[None, :], acc, mask=is_row[:, None])
        tl.store(lse + parts, peak + tl.log2(tl.where(total > 0, total, 1.0)), mask=is_row)


class Tiles(NamedTuple):
    """Rows of queries and keys that a program processes at a time, and its launch options."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    resident: int
    """Programs that one multiprocessor holds."""


# Tiles by head_dim: for work that fills the device, and for less.
_TILES = {
    64: (Tiles(64, 64, 4, 3, 3), Tiles(64, 64, 4, 3, 3)),
    128: (Tiles(128, 128, 8, 3, 1), Tiles(64, 64, 4, 3, 2)),
    256: (Tiles(128, 64, 8, 2, 1), Tiles(128, 64, 8, 2, 1)),
}


def tiles_of(head_dim: int, rows: int, groups: int) -> Tiles:
    """Choose the tiles. ``rows`` is a prompt's queries times the heads that share a KV head;
    ``groups`` is the number of such groups of rows."""
    large, small = _TILES[head_dim]
    return large if -(-rows // large.queries) * groups >= SMS else small


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Launch parameters for one shape: how work is split, and buffers for partial results."""

    tiles: Tiles
    seqs: int
    new: int
    prefix: int
    kv_heads: int
    group: int
    window: int
    splits: int
    tiles_per_split: int
    partial: Any
    lse: Any

    def __call__(self, query: Any, keys: Any, values: Any, out: Any) -> None:
        """Run the kernel. All tensors are contiguous, with the shapes of `prefill_kernel`."""
        head_dim = query.shape[-1]
        num_tiles = -(-self.new * self.group // self.tiles.queries)
        prefill_kernel[(self.seqs * self.kv_heads, num_tiles, self.splits)](
            query,
            keys,
            values,
            out,
            self.partial,
            self.lse,
            head_dim**-0.5 * 1.4426950408889634,
            self.new,
            self.prefix,
            self.kv_heads,
            self.group,
            self.window,
            self.tiles_per_split,
            head_dim=head_dim,
            rows_per_tile=self.tiles.queries,
            keys_per_tile=self.tiles.keys,
            has_window=self.window > 0,
            num_warps=self.tiles.num_warps,
            num_stages=self.tiles.num_stages,
        )
        if self.splits > 1:
            combine(self.partial, self.lse, out)


def prefill(
    *,
    seqs: int,
    new: int,
    prefix: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int,
    device: str,
    tiles: Tiles | None = None,
) -> Prefill:
    """Split the work for one shape; ``window`` 0 means none."""
    tiles = tiles or tiles_of(head_dim, new * group, seqs * kv_heads)
    seen = prefix + new
    if window:
        seen = min(seen, window + -(-tiles.queries // group) + tiles.keys)
    programs = -(-new * group // tiles.queries) * seqs * kv_heads
    num_tiles = -(-seen // tiles.keys)
    is_full = programs >= SMS * tiles.resident
    rows = seqs * new * kv_heads * group
    cut = split_tiles(
        programs,
        num_tiles,
        resident=tiles.resident,
        joined=rows * head_dim,
        splits=1 if is_full else None,
    )
    partial, lse = partial_buffers(rows, cut.splits, head_dim, device)
    return Prefill(
        tiles=tiles,
        seqs=seqs,
        new=new,
        prefix=prefix,
        kv_heads=kv_heads,
        group=group,
        window=window,
        splits=cut.splits,
        tiles_per_split=cut.tiles_per_split,
        partial=partial,
        lse=lse,
    )
