"""Paged decode attention in Triton: the query heads of a KV head form one tile, and KV is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from calibrate.measure.kernels.split_kv import combine, partial_buffers
from calibrate.measure.kernels.split_plan import split_tiles

_TILE_NUMBERS = 16384
"""Numbers of keys that a program loads at a time."""
_ROWS = 16
"""Least number of rows that the tensor cores take; groups with fewer query heads are padded."""
_NUM_STAGES = 5
"""Pipeline stages. Block table and keys take two each, so two tiles are being loaded while one
is processed."""
_RESIDENT = {False: 1, True: 2}
"""Programs that one multiprocessor holds, by whether the cache is fp8. On an H200, one program
that loads two large tiles ahead moves more bytes than three with small tiles, but two with tiles
of half the bytes move a third more than one."""


@triton.jit
def _halves(
    words: tl.tensor, tile_tokens: tl.constexpr, words_per_row: tl.constexpr, has_asm: tl.constexpr
) -> tl.tensor:
    """Convert fp8 (e4m3) numbers, four per int32 of ``words``, to float16 [tile_tokens, 4
    words_per_row].

    Triton's own conversion goes byte by byte if shared memory is involved.
    """
    if has_asm:
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
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (tile_tokens, 4 * words_per_row))


@triton.jit
def _half(words: tl.tensor) -> tl.tensor:
    """Convert the lowest byte to float16; the biases of the two exponents differ by 8."""
    bits = ((words & 0x80) << 8) | ((words & 0x7F) << 7)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0


@triton.jit(
    do_not_specialize=["kv_heads", "group", "window", "tiles_per_split", "table_stride"],
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
    tiles_per_split: tl.tensor,
    table_stride: tl.tensor,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    is_fp8: tl.constexpr,
    has_asm: tl.constexpr,
) -> None:
    """Compute one split for one KV head of one sequence. Grid: (KV heads, splits, sequences).

    ``keys``, ``values``: [blocks, block_size, kv_heads, head_dim], if ``is_fp8`` as int32 of four
    numbers each; ``block_table``: [seqs, table_stride]; ``scale``: factor of the scores, in base 2.
    """
    head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    context = tl.load(contexts + seq)
    begin = tl.maximum(context - window, 0) + split * tiles_per_split * tile_tokens
    end = tl.minimum(context, begin + tiles_per_split * tile_tokens)
    words_per_row: tl.constexpr = head_dim // 4 if is_fp8 else head_dim
    rows, places = tl.arange(0, tile_rows), tl.arange(0, tile_tokens)
    dims, words = tl.arange(0, head_dim), tl.arange(0, words_per_row)
    first_row = (seq * kv_heads + head) * group
    # Rows beyond the group repeat its last.
    q_rows = first_row + tl.minimum(rows, group - 1)
    tile_q = tl.load(query + q_rows[:, None] * head_dim + dims[None, :])
    tile_q = tile_q.to(tl.float16 if is_fp8 else keys.dtype.element_ty)
    table = block_table + seq.to(tl.int64) * table_stride
    peak = tl.full((tile_rows,), -float("inf"), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    acc = tl.zeros((tile_rows, head_dim), tl.float32)
    for at in range(begin, end, tile_tokens):
        # Past the end nothing is read: if it were the last position again, all multiprocessors
        # would ask for few addresses many times.
        is_read = (at + places < end)[:, None]
        position = tl.minimum(at + places, end - 1)
        block = tl.load(table + position // block_size).to(tl.int64)
        slot = (block * block_size + position % block_size) * kv_heads + head
        offsets = slot[:, None] * words_per_row + words[None, :]
        tile_k = tl.load(keys + offsets, mask=is_read, other=0)
        tile_v = tl.load(values + offsets, mask=is_read, other=0)
        if is_fp8:
            tile_k = _halves(tile_k, tile_tokens, words_per_row, has_asm)
            tile_v = _halves(tile_v, tile_tokens, words_per_row, has_asm)
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
        places_o = out_rows[:, None] * head_dim + dims[None, :]
        tl.store(out + places_o, acc.to(out.dtype.element_ty), mask=is_row[:, None])
    else:
        parts = out_rows.to(tl.int64) * splits + split
        tl.store(partial + parts[:, None] * head_dim + dims[None, :], acc, mask=is_row[:, None])
        tl.store(lse + parts, peak + tl.log2(tl.where(total > 0, total, 1.0)), mask=is_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedDecode:
    """Launch parameters for one shape: how work is split, and buffers for partial results."""

    kv_heads: int
    group: int
    head_dim: int
    window: int
    block_size: int
    splits: int
    tiles_per_split: int
    is_fp8: bool
    partial: Any
    lse: Any

    def __call__(
        self, query: Any, keys: Any, values: Any, table: Any, contexts: Any, out: Any
    ) -> None:
        """Run the kernel. ``query``, ``out``: [seqs, kv_heads * group, head_dim]; keys and
        values as in `decode_kernel`."""
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
            self.tiles_per_split,
            table.shape[1],
            head_dim=self.head_dim,
            block_size=self.block_size,
            tile_rows=_ROWS,
            tile_tokens=tokens_per_tile(self.head_dim),
            is_fp8=self.is_fp8,
            has_asm=not triton.knobs.runtime.interpret,
            num_warps=4,
            num_stages=_NUM_STAGES,
        )
        if self.splits > 1:
            combine(self.partial, self.lse, out)


def tokens_per_tile(head_dim: int) -> int:
    """Return the tokens of KV that a program loads at a time."""
    return _TILE_NUMBERS // head_dim


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
    """Split the work. ``context_tokens`` is the longest sequence's; ``window`` 0 means none."""
    if group > _ROWS:
        raise ValueError(f"{group} query heads a KV head, at most {_ROWS}")
    seen = min(context_tokens, window) if window else context_tokens
    tiles = -(-seen // tokens_per_tile(head_dim))
    rows = seqs * kv_heads * group
    plan = split_tiles(
        seqs * kv_heads,
        tiles,
        resident=_RESIDENT[is_fp8],
        joined=rows * head_dim,
        splits=splits,
    )
    partial, lse = partial_buffers(rows, plan.splits, head_dim, device)
    return PagedDecode(
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        window=window,
        block_size=block_size,
        splits=plan.splits,
        tiles_per_split=plan.tiles_per_split,
        is_fp8=is_fp8,
        partial=partial,
        lse=lse,
    )
