"""Paged decode attention in Triton: the query heads of a KV head are one tile, KV is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from calibrate.measure.kernels.split_kv import combine, partial_buffers, split_tiles

TILE_NUMBERS = 8192
"""Of keys that a program loads at a time."""
ROWS = 16
"""The tensor cores take no fewer; groups of fewer query heads are padded."""
NUM_STAGES = 5
"""Block table and keys take two each: two tiles are on their way while one is worked on."""
_RESIDENT = 3
"""Programs that one multiprocessor holds: 72 KB of shared memory each."""


@triton.jit
def _halves(words: tl.tensor, TILE: tl.constexpr, WORDS: tl.constexpr, ASM: tl.constexpr) -> tl.tensor:
    """float16 [TILE, 4 WORDS] of fp8 (e4m3) numbers, four in each int32 of ``words``.

    Triton's own conversion goes byte by byte once shared memory is involved.
    """
    if ASM:
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b16 low, high;
            .reg .b32 first, second;
            mov.b32 {low, high}, $4;
            cvt.rn.f16x2.e4m3x2 first, low;
            cvt.rn.f16x2.e4m3x2 second, high;
            mov.b32 {$0, $1}, first;
            mov.b32 {$2, $3}, second;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        a = _half(words)
        b = _half(words >> 8)
        c = _half(words >> 16)
        d = _half(words >> 24)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (TILE, 4 * WORDS))


@triton.jit
def _half(words: tl.tensor) -> tl.tensor:
    """The lowest byte as float16: the exponent's bias differs by 8."""
    bits = ((words & 0x80) << 8) | ((words & 0x7F) << 7)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0


@triton.jit(
    do_not_specialize=["kv_heads", "group", "window", "tiles_a_split", "table_stride"],
    do_not_specialize_on_alignment=["block_table", "contexts"],
)
def decode_kernel(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    block_table: tl.tensor,
    contexts: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    lse: tl.tensor,
    scale: tl.tensor,
    value_scale: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    window: tl.tensor,
    tiles_a_split: tl.tensor,
    table_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    IS_FP8: tl.constexpr,
    ASM: tl.constexpr,
) -> None:
    """Program (KV head, split, sequence).

    ``keys``, ``values``: [blocks, BLOCK_SIZE, kv_heads, HEAD_DIM], where ``IS_FP8`` as int32 of
    four; ``block_table``: [seqs, table_stride]; ``scale``: of scores, in base 2.
    """
    head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    context = tl.load(contexts + seq)
    begin = tl.maximum(context - window, 0) + split * tiles_a_split * TILE
    end = tl.minimum(context, begin + tiles_a_split * TILE)
    WORDS: tl.constexpr = HEAD_DIM // 4 if IS_FP8 else HEAD_DIM
    rows, places = tl.arange(0, ROWS), tl.arange(0, TILE)
    dims, words = tl.arange(0, HEAD_DIM), tl.arange(0, WORDS)
    first_row = (seq * kv_heads + head) * group
    # Rows beyond the group repeat its last.
    q_rows = first_row + tl.minimum(rows, group - 1)
    tile_q = tl.load(query + q_rows[:, None] * HEAD_DIM + dims[None, :])
    tile_q = tile_q.to(tl.float16 if IS_FP8 else keys.dtype.element_ty)
    table = block_table + seq.to(tl.int64) * table_stride
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    for at in range(begin, end, TILE):
        # Past the end the last position is read again, and scores nothing.
        position = tl.minimum(at + places, end - 1)
        block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        slot = (block * BLOCK_SIZE + position % BLOCK_SIZE) * kv_heads + head
        offsets = slot[:, None] * WORDS + words[None, :]
        tile_k = tl.load(keys + offsets)
        tile_v = tl.load(values + offsets)
        if IS_FP8:
            tile_k = _halves(tile_k, TILE, WORDS, ASM)
            tile_v = _halves(tile_v, TILE, WORDS, ASM)
        scores = tl.dot(tile_q, tl.trans(tile_k)) * scale
        scores = tl.where((at + places < end)[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(tile_v.dtype), tile_v, acc * shrink[:, None])
        peak = new_peak
    # A split beyond a shorter context has read nothing, and weighs nothing.
    acc = acc * (value_scale / tl.where(total > 0, total, 1.0))[:, None]
    out_rows = first_row + rows
    is_row = rows < group
    if splits == 1:
        places_o = out_rows[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out + places_o, acc.to(out.dtype.element_ty), mask=is_row[:, None])
    else:
        parts = out_rows.to(tl.int64) * splits + split
        tl.store(partial + parts[:, None] * HEAD_DIM + dims[None, :], acc, mask=is_row[:, None])
        tl.store(lse + parts, peak + tl.log2(total), mask=is_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedDecode:
    """One launch's shape: how work is cut, and room for partial results."""

    kv_heads: int
    group: int
    head_dim: int
    window: int
    block_size: int
    splits: int
    tiles_a_split: int
    is_fp8: bool
    partial: Any
    lse: Any

    def __call__(
        self, query: Any, keys: Any, values: Any, table: Any, contexts: Any, out: Any
    ) -> None:
        """``query``, ``out``: [seqs, kv_heads * group, head_dim]; keys and values of the kernel."""
        seqs = query.shape[0]
        decode_kernel[(self.kv_heads, self.splits, seqs)](
            query,
            keys,
            values,
            table,
            contexts,
            out,
            self.partial,
            self.lse,
            self.head_dim**-0.5 * 1.4426950408889634,
            1.0,
            self.kv_heads,
            self.group,
            self.window or 2**30,
            self.tiles_a_split,
            table.shape[1],
            HEAD_DIM=self.head_dim,
            BLOCK_SIZE=self.block_size,
            ROWS=ROWS,
            TILE=tile_tokens(self.head_dim),
            IS_FP8=self.is_fp8,
            ASM=not triton.knobs.runtime.interpret,
            num_warps=4,
            num_stages=NUM_STAGES,
        )
        if self.splits > 1:
            combine(self.partial, self.lse, out)


def tile_tokens(head_dim: int) -> int:
    """Tokens of KV that a program loads at a time."""
    return TILE_NUMBERS // head_dim


def paged_decode(
    *,
    seqs: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int,
    block_size: int,
    context_tokens: int,
    is_fp8: bool,
    device: str,
    splits: int | None = None,
) -> PagedDecode:
    """Cuts the work; ``context_tokens``: of the longest sequence. ``window`` 0: none."""
    if group > ROWS:
        raise ValueError(f"{group} query heads a KV head, at most {ROWS}")
    seen = min(context_tokens, window) if window else context_tokens
    tiles = -(-seen // tile_tokens(head_dim))
    plan = split_tiles(seqs * kv_heads, tiles, resident=_RESIDENT, splits=splits)
    rows = seqs * kv_heads * group
    partial, lse = partial_buffers(rows, plan.splits, head_dim, device)
    return PagedDecode(
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        window=window,
        block_size=block_size,
        splits=plan.splits,
        tiles_a_split=plan.tiles_a_split,
        is_fp8=is_fp8,
        partial=partial,
        lse=lse,
    )
