"""Absorbed MLA decode in Triton: all query heads share one latent per token, and KV is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from calibrate.measure.kernels.split_kv import combine, partial_buffers
from calibrate.measure.kernels.split_plan import split_tiles


@triton.jit(
    do_not_specialize=["heads", "tiles_per_split", "table_stride"],
    do_not_specialize_on_alignment=["block_table", "contexts"],
)
def mla_kernel(
    query: tl.tensor,
    latents: tl.tensor,
    block_table: tl.tensor,
    contexts: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    lse: tl.tensor,
    scale: tl.tensor,
    heads: tl.tensor,
    tiles_per_split: tl.tensor,
    table_stride: tl.tensor,
    rank: tl.constexpr,
    rope: tl.constexpr,
    block_size: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
) -> None:
    """Compute one split for a tile of heads of one sequence; ``tile_tokens`` divides
    ``block_size``.

    Grid: (tiles of heads, splits, sequences). ``query``: [seqs, heads, rank + rope]; ``latents``:
    [blocks, block_size, rank + rope], whose first ``rank`` are also the values; ``out``: [seqs,
    heads, rank]; ``scale``: factor of the scores, in base 2.
    """
    split, seq = tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    width: tl.constexpr = rank + rope
    context = tl.load(contexts + seq)
    begin = split * tiles_per_split * tile_tokens
    end = tl.minimum(context, begin + tiles_per_split * tile_tokens)
    rows = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    is_row = rows < heads
    ranks, ropes, places = tl.arange(0, rank), tl.arange(0, rope), tl.arange(0, tile_tokens)
    q_rows = (seq * heads + tl.minimum(rows, heads - 1))[:, None] * width
    q_rank = tl.load(query + q_rows + ranks[None, :])
    q_rope = tl.load(query + q_rows + (rank + ropes)[None, :])
    table = block_table + seq.to(tl.int64) * table_stride
    peak = tl.full((tile_rows,), -float("inf"), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    acc = tl.zeros((tile_rows, rank), tl.float32)
    # A tile lies in one block, whose number is read a tile ahead.
    block = tl.load(table + tl.minimum(begin, context - 1) // block_size).to(tl.int64)
    for at in range(begin, end, tile_tokens):
        slots = block * block_size + at % block_size + places
        tile = tl.load(latents + slots[:, None] * width + ranks[None, :])
        tile_rope = tl.load(latents + slots[:, None] * width + (rank + ropes)[None, :])
        block = tl.load(table + tl.minimum(at + tile_tokens, context - 1) // block_size).to(
            tl.int64
        )
        scores = tl.dot(q_rope, tl.trans(tile_rope))
        scores = tl.dot(q_rank, tl.trans(tile), scores) * scale
        scores = tl.where((at + places < end)[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(tile.dtype), tile, acc * shrink[:, None])
        peak = new_peak
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_rows = seq.to(tl.int64) * heads + rows
    if splits == 1:
        places_o = out_rows[:, None] * rank + ranks[None, :]
        tl.store(out + places_o, acc.to(out.dtype.element_ty), mask=is_row[:, None])
    else:
        parts = out_rows * splits + split
        tl.store(partial + parts[:, None] * rank + ranks[None, :], acc, mask=is_row[:, None])
        tl.store(lse + parts, peak + tl.log2(tl.where(total > 0, total, 1.0)), mask=is_row)


class Tiles(NamedTuple):
    """Heads and tokens that a program processes at a time, and its launch options."""

    heads: int
    tokens: int
    num_warps: int
    num_stages: int
    resident: int
    """Programs that one multiprocessor holds."""


def tiles_of(heads: int) -> Tiles:
    """Choose the tiles. From 64 heads on, the tensor cores work by warp group."""
    if heads <= 16:
        return Tiles(16, 64, 4, 2, 2)
    if heads <= 32:
        return Tiles(32, 32, 4, 3, 2)
    return Tiles(64, 64, 8, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaDecode:
    """Launch parameters for one shape: how work is split, and buffers for partial results."""

    tiles: Tiles
    rank: int
    rope: int
    block_size: int
    scale: float
    splits: int
    tiles_per_split: int
    partial: Any
    lse: Any

    def __call__(self, query: Any, latents: Any, table: Any, contexts: Any, out: Any) -> None:
        """Run the kernel. All tensors are contiguous, with the shapes of `mla_kernel`."""
        seqs, heads = query.shape[:2]
        mla_kernel[(-(-heads // self.tiles.heads), self.splits, seqs)](
            query,
            latents,
            table,
            contexts,
            out,
            self.partial,
            self.lse,
            self.scale * 1.4426950408889634,
            heads,
            self.tiles_per_split,
            table.shape[1],
            rank=self.rank,
            rope=self.rope,
            block_size=self.block_size,
            tile_rows=self.tiles.heads,
            tile_tokens=self.tiles.tokens,
            num_warps=self.tiles.num_warps,
            num_stages=self.tiles.num_stages,
        )
        if self.splits > 1:
            combine(self.partial, self.lse, out)


def mla_decode(
    *,
    seqs: int,
    heads: int,
    rank: int,
    rope: int,
    block_size: int,
    context_tokens: int,
    scale: float,
    device: str,
) -> MlaDecode:
    """Split the work. ``context_tokens`` is the longest sequence's; ``scale`` is the factor of
    the scores."""
    tiles = tiles_of(heads)
    programs = seqs * -(-heads // tiles.heads)
    cut = split_tiles(
        programs,
        -(-context_tokens // tiles.tokens),
        resident=tiles.resident,
        joined=seqs * heads * rank,
    )
    partial, lse = partial_buffers(seqs * heads, cut.splits, rank, device)
    return MlaDecode(
        tiles=tiles,
        rank=rank,
        rope=rope,
        block_size=block_size,
        scale=scale,
        splits=cut.splits,
        tiles_per_split=cut.tiles_per_split,
        partial=partial,
        lse=lse,
    )
