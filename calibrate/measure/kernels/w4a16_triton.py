"""Activations times int4 weights that are widened in the kernel, in Triton.

A group of 128 numbers along k of one column has one scale; zero is 8. Its weights are 32 words of
16 bits, [groups, n, 32] in the order in which they are read: word j holds the numbers j, 32 + j, 64
+ j and 96 + j, lowest bits first, so that the same bits of all words are an operand with 32 numbers
along k.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Two words to 4 x 2 bfloat16. 0x4300 with a number in its last four bits is 128 + the number, and
# 0x4308 is 136. The lookup table 0xea is (a & b) | c.
WIDEN = tl.constexpr("""
{
.reg .b32 w, t, zero;
mov.b32 w, $4;
mov.b32 zero, 0x43084308;
lop3.b32 t, w, 0x000f000f, 0x43004300, 0xea;
sub.rn.bf16x2 $0, t, zero;
shr.u32 w, w, 4;
lop3.b32 t, w, 0x000f000f, 0x43004300, 0xea;
sub.rn.bf16x2 $1, t, zero;
shr.u32 w, w, 4;
lop3.b32 t, w, 0x000f000f, 0x43004300, 0xea;
sub.rn.bf16x2 $2, t, zero;
shr.u32 w, w, 4;
lop3.b32 t, w, 0x000f000f, 0x43004300, 0xea;
sub.rn.bf16x2 $3, t, zero;
}
""")


@triton.jit
def _plain(words: tl.tensor, shift: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    return (((words.to(tl.int32) >> shift) & 15) - 8).to(dtype)


@triton.jit
def _widened(words: tl.tensor, dtype: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Return the numbers of ``words``, minus 8, by their place in a word."""
    if dtype == tl.bfloat16:
        first, second, third, fourth = tl.inline_asm_elementwise(
            asm=WIDEN,
            constraints="=r,=r,=r,=r,r",
            args=[words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        first, second = _plain(words, 0, dtype), _plain(words, 4, dtype)
        third, fourth = _plain(words, 8, dtype), _plain(words, 12, dtype)
    return first, second, third, fourth


@triton.jit(do_not_specialize=["m", "blocks_n", "groups", "groups_per_split"])
def w4a16_matmul(
    rows: tl.tensor,
    weights: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    blocks_n: tl.tensor,
    groups: tl.tensor,
    groups_per_split: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    group_m: tl.constexpr,
) -> None:
    """Compute ``out`` [splits, m, n] from rows [m, 128 groups], scales [groups, n]; n = blocks_n *
    block_n.

    The tile is computed transposed, [block_n, block_m], so that few rows still fill the tensor
    cores. Grid: (tiles of n times tiles of m, splits).
    """
    n, k = blocks_n * block_n, groups * 128
    program, split = tl.program_id(0), tl.program_id(1)
    tiles_m = tl.cdiv(m, block_m)
    band = program // (group_m * blocks_n)
    height = tl.minimum(tiles_m - band * group_m, group_m)
    within = program % (group_m * blocks_n)
    row = (band * group_m + within % height) * block_m + tl.arange(0, block_m)
    column = (within // height) * block_n + tl.arange(0, block_n)
    inner = tl.arange(0, 32)
    begin = split * groups_per_split
    # Rows beyond the last are not read: the last again, by all programs, is a queue for it.
    is_row = (row < m)[None, :]
    row_place = (row * k)[None, :] + inner[:, None]
    word_place = column[:, None] * 32 + inner[None, :]
    dtype = rows.dtype.element_ty
    sums = tl.zeros((block_n, block_m), tl.float32)
    for group in range(begin, tl.minimum(begin + groups_per_split, groups)):
        words = tl.load(weights + group * n * 32 + word_place)
        here = rows + group * 128
        first, second, third, fourth = _widened(words, dtype)
        tile = tl.load(here + row_place, mask=is_row, other=0.0)
        part = tl.dot(first, tile, input_precision="ieee")
        tile = tl.load(here + 32 + row_place, mask=is_row, other=0.0)
        part = tl.dot(second, tile, part, input_precision="ieee")
        tile = tl.load(here + 64 + row_place, mask=is_row, other=0.0)
        part = tl.dot(third, tile, part, input_precision="ieee")
        tile = tl.load(here + 96 + row_place, mask=is_row, other=0.0)
        part = tl.dot(fourth, tile, part, input_precision="ieee")
        sums += part * tl.load(scales + group * n + column).to(tl.float32)[:, None]
    place = (split * m + row).to(tl.int64)[None, :] * n + column[:, None]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=is_row)


@triton.jit(do_not_specialize=["splits", "blocks"])
def sum_splits(
    partial: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    blocks: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Sum over the first axis of [splits, blocks * block] float32."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros((block,), tl.float32)
    for split in range(splits):
        total += tl.load(partial + split * (blocks * block) + index)
    tl.store(out + index, total.to(out.dtype.element_ty))
