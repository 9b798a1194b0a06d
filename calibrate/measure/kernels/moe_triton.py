"""Routed experts of an MoE layer in Triton: rows sorted by expert, two grouped products.

Rows of one expert are padded to whole blocks of ``block_m`` places, so that a block reads the
weights of one expert. No kernel waits for the host: the grids are large enough for any routing, and
blocks without rows return at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["assignments", "max_blocks", "block_m"])
def plan_blocks(
    expert_ids: tl.tensor,
    next_place: tl.tensor,
    block_expert: tl.tensor,
    block_rows: tl.tensor,
    assignments: tl.tensor,
    max_blocks: tl.tensor,
    block_m: tl.tensor,
    num_experts: tl.constexpr,
    at_once: tl.constexpr,
    blocks: tl.constexpr,
) -> None:
    """Plan the expert and number of rows of each block, and the first place of each expert.

    ``expert_ids`` [assignments], -1 for an expert of another rank. Each program counts all of them
    and plans ``blocks`` blocks. ``num_experts`` is a power of two, at least the number of experts.
    """
    experts = tl.arange(0, num_experts)
    counts = tl.zeros((num_experts,), tl.int32)
    for start in range(0, assignments, at_once):
        places = start + tl.arange(0, at_once)
        ids = tl.load(expert_ids + places, mask=places < assignments, other=-1)
        counts += tl.histogram(tl.maximum(ids, 0), num_experts, ids >= 0)
    expert_blocks = (counts + block_m - 1) // block_m
    ends = tl.cumsum(expert_blocks, 0)
    starts = ends - expert_blocks
    first = tl.program_id(0) * blocks
    tl.store(next_place + experts, starts * block_m, mask=(experts >= 0) & (first == 0))
    block = first + tl.arange(0, blocks)
    owner = tl.sum((ends[None, :] <= block[:, None]).to(tl.int32), 1)
    left = counts[None, :] - (block[:, None] - starts[None, :]) * block_m
    rows = tl.sum(tl.where(experts[None, :] == owner[:, None], left, 0), 1)
    planned = block < max_blocks
    tl.store(block_expert + block, owner, mask=planned)
    tl.store(block_rows + block, tl.minimum(rows, block_m), mask=planned)


@triton.jit(do_not_specialize=["assignments"])
def place_rows(
    expert_ids: tl.tensor,
    next_place: tl.tensor,
    placed: tl.tensor,
    assignments: tl.tensor,
    at_once: tl.constexpr,
) -> None:
    """Put each assignment into a place of its expert: ``placed`` [places]."""
    index = tl.program_id(0) * at_once + tl.arange(0, at_once)
    ids = tl.load(expert_ids + index, mask=index < assignments, other=-1)
    is_ours = ids >= 0
    place = tl.atomic_add(next_place + tl.maximum(ids, 0), 1, mask=is_ours, sem="relaxed")
    tl.store(placed + place, index, mask=is_ours)


@triton.jit(do_not_specialize=["top_k", "blocks_n", "chunks_k", "num_blocks"])
def grouped_matmul(
    rows: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    placed: tl.tensor,
    block_expert: tl.tensor,
    block_rows: tl.tensor,
    routing: tl.tensor,
    row_scale: tl.tensor,
    weight_scale: tl.tensor,
    top_k: tl.tensor,
    blocks_n: tl.tensor,
    chunks_k: tl.tensor,
    num_blocks: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    unit: tl.constexpr,
    is_down: tl.constexpr,
    is_scaled: tl.constexpr,
) -> None:
    """Multiply rows by the transposed weights [experts, n, k] of their block's expert.

    gate_up reads a token's row [tokens, k] and writes its place; down reads the place and writes
    the assignment's row times its routing weight. n = blocks_n * unit, k = chunks_k * block_k.
    Grid: all blocks times ceil(n / block_n), ``group_m`` blocks of rows together.
    """
    n, k = blocks_n * unit, chunks_k * block_k
    tiles_n = tl.cdiv(n, block_n)
    program = tl.program_id(0)
    group = program // (group_m * tiles_n)
    first = group * group_m
    size = tl.minimum(num_blocks - first, group_m)
    within = program % (group_m * tiles_n)
    block = first + within % size
    tile = within // size
    count = tl.load(block_rows + block)
    if count == 0:
        return
    offsets = tl.arange(0, block_m)
    valid = offsets < count
    places = block * block_m + offsets
    assignment = tl.load(placed + places, mask=valid, other=0)
    columns = tile * block_n + tl.arange(0, block_n)
    inner = tl.arange(0, block_k)
    expert = tl.load(block_expert + block).to(tl.int64)
    source = places if is_down else assignment // top_k
    row_tile = rows + source.to(tl.int64)[:, None] * k + inner[None, :]
    # Columns beyond the last repeat the first ones and are not stored.
    weight_tile = weights + expert * n * k + (columns % n)[None, :] * k + inner[:, None]
    sums = tl.zeros((block_m, block_n), tl.float32)
    for _ in range(chunks_k):
        a = tl.load(row_tile, mask=valid[:, None], other=0.0)
        b = tl.load(weight_tile)
        sums = tl.dot(a, b, sums, input_precision="ieee")
        row_tile += block_k
        weight_tile += block_k
    if is_scaled:
        sums = sums * (tl.load(row_scale) * tl.load(weight_scale + expert))
    target = places
    if is_down:
        sums = sums * tl.load(routing + assignment, mask=valid, other=0.0)[:, None]
        target = assignment
    place = out + target.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(place, sums.to(out.dtype.element_ty), mask=valid[:, None] & (columns < n)[None, :])


@triton.jit(do_not_specialize=["units", "block_m"])
def silu_mul(
    gate_up: tl.tensor,
    out: tl.tensor,
    block_rows: tl.tensor,
    scale: tl.tensor,
    units: tl.tensor,
    block_m: tl.tensor,
    block: tl.constexpr,
    unit: tl.constexpr,
    is_scaled: tl.constexpr,
) -> None:
    """Compute silu(gate) * up over ``scale``: [places, 2 n] to [places, n], n = units * unit."""
    n = units * unit
    place = tl.program_id(0)
    if place % block_m >= tl.load(block_rows + place // block_m):
        return
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < n
    row = place.to(tl.int64) * n
    gate = tl.load(gate_up + 2 * row + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + 2 * row + n + columns, mask=mask, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    if is_scaled:
        value = _in_fp8(value, tl.load(scale))
    tl.store(out + row + columns, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _in_fp8(value: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return tl.minimum(tl.maximum(value / scale, -448.0), 448.0)


@triton.jit(do_not_specialize=["units"])
def quantize(
    values: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    units: tl.tensor,
    block: tl.constexpr,
    unit: tl.constexpr,
) -> None:
    """Quantize to fp8 with a scale that is known beforehand: units * unit numbers."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = index < units.to(tl.int64) * unit
    value = tl.load(values + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + index, _in_fp8(value, tl.load(scale)).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["top_k", "units"])
def sum_experts(
    weighted: tl.tensor,
    expert_ids: tl.tensor,
    out: tl.tensor,
    top_k: tl.tensor,
    units: tl.tensor,
    block: tl.constexpr,
    unit: tl.constexpr,
) -> None:
    """Sum a token's rows [tokens, top_k, n] that this rank computed. Grid: (tokens, n tiles)."""
    n = units * unit
    token = tl.program_id(0)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < n
    total = tl.zeros((block,), tl.float32)
    for choice in range(top_k):
        index = token * top_k + choice
        is_ours = tl.load(expert_ids + index) >= 0
        row = weighted + index.to(tl.int64) * n + columns
        total += tl.load(row, mask=mask & is_ours, other=0.0).to(tl.float32)
    tl.store(out + token.to(tl.int64) * n + columns, total.to(out.dtype.element_ty), mask=mask)
