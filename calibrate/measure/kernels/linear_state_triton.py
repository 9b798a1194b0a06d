"""Gated delta rule over prompts in Triton, second half; `linear_chunk_triton` defines the
symbols."""

from __future__ import annotations

import triton
import triton.language as tl

from calibrate.measure.kernels.linear_chunk_triton import chunk_rows


@triton.jit
def _next_row(found: tl.tensor, lower: tl.tensor, at: tl.tensor) -> tl.tensor:
    """Compute one row of (I + lower)^-1 by forward substitution, from the rows above it in
    ``found``."""
    factors = tl.sum(tl.where(at, lower, 0.0), 0)
    return tl.where(at, found - tl.sum(factors[:, None] * found, 0)[None, :], found)


@triton.jit
def _square(
    system: tl.tensor, item: tl.tensor, valid: tl.tensor, column: tl.tensor, size: tl.constexpr
) -> tl.tensor:
    return tl.load(system + item[:, None] * size + column[None, :], mask=valid[:, None], other=0.0)


@triton.jit
def _product(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    return tl.dot(left, right, input_precision="tf32x3")


@triton.jit(do_not_specialize=["tokens", "chunks", "heads"])
def solve_systems(
    system: tl.tensor,
    inverse: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
) -> None:
    """Compute (I + A)^-1 of each chunk of 64, in squares of 16. Grid: (chunks of all prompts,
    heads).

    Uses forward substitution at the diagonal and products of squares below it, all in float32.
    """
    part: tl.constexpr = 16
    size: tl.constexpr = 64
    first, count = chunk_rows(tokens, chunks, size)
    head = tl.program_id(1)
    c0 = tl.arange(0, part)
    c1, c2, c3 = part + c0, 2 * part + c0, 3 * part + c0
    v0, v1, v2, v3 = c0 < count, c1 < count, c2 < count, c3 < count
    r0 = (first + c0) * heads + head
    r1 = (first + c1) * heads + head
    r2 = (first + c2) * heads + head
    r3 = (first + c3) * heads + head
    a00 = _square(system, r0, v0, c0, size)
    a11 = _square(system, r1, v1, c1, size)
    a22 = _square(system, r2, v2, c2, size)
    a33 = _square(system, r3, v3, c3, size)
    x00 = tl.where(c0[:, None] == c0[None, :], 1.0, 0.0)
    x11, x22, x33 = x00, x00, x00
    # Four at once, each waits for its own row only.
    for row in range(1, part):
        at = c0[:, None] == row
        x00 = _next_row(x00, a00, at)
        x11 = _next_row(x11, a11, at)
        x22 = _next_row(x22, a22, at)
        x33 = _next_row(x33, a33, at)
    a10 = _square(system, r1, v1, c0, size)
    a20 = _square(system, r2, v2, c0, size)
    a21 = _square(system, r2, v2, c1, size)
    a30 = _square(system, r3, v3, c0, size)
    a31 = _square(system, r3, v3, c1, size)
    a32 = _square(system, r3, v3, c2, size)
    x10 = -_product(x11, _product(a10, x00))
    x21 = -_product(x22, _product(a21, x11))
    x32 = -_product(x33, _product(a32, x22))
    x20 = -_product(x22, _product(a20, x00) + _product(a21, x10))
    x31 = -_product(x33, _product(a31, x11) + _product(a32, x21))
    x30 = -_product(x33, _product(a30, x00) + _product(a31, x10) + _product(a32, x20))
    zero = tl.zeros((part, part), tl.float32)
    _store_row(inverse, r0, v0, x00, zero, zero, zero, part)
    _store_row(inverse, r1, v1, x10, x11, zero, zero, part)
    _store_row(inverse, r2, v2, x20, x21, x22, zero, part)
    _store_row(inverse, r3, v3, x30, x31, x32, x33, part)


@triton.jit
def _store_row(
    inverse: tl.tensor,
    item: tl.tensor,
    valid: tl.tensor,
    x0: tl.tensor,
    x1: tl.tensor,
    x2: tl.tensor,
    x3: tl.tensor,
    part: tl.constexpr,
) -> None:
    element = inverse.dtype.element_ty
    place = inverse + item[:, None] * (4 * part) + tl.arange(0, part)[None, :]
    mask = valid[:, None]
    tl.store(place, x0.to(element), mask=mask)
    tl.store(place + part, x1.to(element), mask=mask)
    tl.store(place + 2 * part, x2.to(element), mask=mask)
    tl.store(place + 3 * part, x3.to(element), mask=mask)


@triton.jit(do_not_specialize=["tokens", "chunks", "heads", "key_heads"])
def prepare_chunks(
    keys: tl.tensor,
    values: tl.tensor,
    sums: tl.tensor,
    beta: tl.tensor,
    inverse: tl.tensor,
    w: tl.tensor,
    u: tl.tensor,
    tail: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
    key_heads: tl.tensor,
    size: tl.constexpr,
    dk: tl.constexpr,
    dv: tl.constexpr,
    block: tl.constexpr,
    per_channel: tl.constexpr,
) -> None:
    """Compute W, U' and exp(G_last - G) K, rows by head. Grid: (chunks of all prompts, heads)."""
    first, count = chunk_rows(tokens, chunks, size)
    head = tl.program_id(1)
    rows = tl.arange(0, size)
    valid = rows < count
    mask = valid[:, None]
    item = (first + rows) * heads + head
    key_item = (first + rows) * key_heads + head // (heads // key_heads)
    last = (first + count - 1) * heads + head
    element = keys.dtype.element_ty
    b = tl.load(beta + item, mask=valid, other=0.0)[:, None]
    solved = tl.load(inverse + item[:, None] * size + rows[None, :], mask=mask, other=0.0)
    for begin in range(0, dk, block):
        dims = begin + tl.arange(0, block)
        place = item[:, None] * dk + dims[None, :]
        k = tl.load(keys + key_item[:, None] * dk + dims[None, :], mask=mask, other=0.0)
        k = k.to(tl.float32)
        if per_channel:
            total = tl.load(sums + place, mask=mask, other=0.0)
            final = tl.load(sums + last * dk + dims)[None, :]
        else:
            total = tl.load(sums + item, mask=valid, other=0.0)[:, None]
            final = tl.load(sums + last)
        tl.store(tail + place, (k * tl.exp(final - total)).to(element), mask=mask)
        met = tl.dot(solved, (k * tl.exp(total) * b).to(element), input_precision="ieee")
        tl.store(w + place, met.to(element), mask=mask)
    for begin in range(0, dv, block):
        place = item[:, None] * dv + begin + tl.arange(0, block)[None, :]
        v = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        own = tl.dot(solved, (v * b).to(element), input_precision="ieee")
        tl.store(u + place, own.to(element), mask=mask)


@triton.jit(do_not_specialize=["tokens", "chunks", "heads"])
def carry_states(
    w: tl.tensor,
    u: tl.tensor,
    tail: tl.tensor,
    sums: tl.tensor,
    states: tl.tensor,
    before: tl.tensor,
    corrections: tl.tensor,
    final: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
    size: tl.constexpr,
    dk: tl.constexpr,
    dv: tl.constexpr,
    block_v: tl.constexpr,
    per_channel: tl.constexpr,
) -> None:
    """Carry ``states`` through the chunks to ``final`` ([seqs, heads, dk, dv] float32).

    Writes the state before each chunk, [chunk, head, dk, dv], and U. Grid: (dv / block_v, heads,
    seqs).
    """
    head, seq = tl.program_id(1), tl.program_id(2)
    rows, dims = tl.arange(0, size), tl.arange(0, dk)
    columns = tl.program_id(0) * block_v + tl.arange(0, block_v)
    square = dims[:, None] * dv + columns[None, :]
    own = (seq * heads + head).to(tl.int64) * (dk * dv)
    state = tl.load(states + own + square)
    element = w.dtype.element_ty
    for chunk in range(chunks):
        first = seq * tokens + chunk * size
        count = tl.minimum(tokens - chunk * size, size)
        valid = rows < count
        item = (first + rows) * heads + head
        key_place = item[:, None] * dk + dims[None, :]
        tail_place = item[None, :] * dk + dims[:, None]
        value_place = item[:, None] * dv + columns[None, :]
        # Asked for early, as it is not prefetched.
        last = (first + count - 1) * heads + head
        if per_channel:
            decay = tl.exp(tl.load(sums + last * dk + dims))[:, None]
        else:
            decay = tl.exp(tl.load(sums + last))
        at = ((seq * chunks + chunk) * heads + head).to(tl.int64) * (dk * dv)
        held = state.to(element)
        tl.store(before + at + square, held)
        met = tl.load(w + key_place, mask=valid[:, None], other=0.0)
        correction = tl.load(u + value_place, mask=valid[:, None], other=0.0).to(tl.float32)
        correction -= tl.dot(met, held, input_precision="ieee")
        written = correction.to(element)
        tl.store(corrections + value_place, written, mask=valid[:, None])
        state = state * decay
        decayed = tl.load(tail + tail_place, mask=valid[None, :], other=0.0)
        state = tl.dot(decayed, written, state, input_precision="ieee")
    tl.store(final + own + square, state)


@triton.jit(do_not_specialize=["tokens", "chunks", "heads", "key_heads"])
def read_states(
    query: tl.tensor,
    sums: tl.tensor,
    scores: tl.tensor,
    before: tl.tensor,
    corrections: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
    key_heads: tl.tensor,
    size: tl.constexpr,
    dk: tl.constexpr,
    dv: tl.constexpr,
    per_channel: tl.constexpr,
) -> None:
    """Compute O = (exp(G) Q) S + P U. Grid: (chunks of all prompts, heads)."""
    first, count = chunk_rows(tokens, chunks, size)
    head = tl.program_id(1)
    rows, dims, columns = tl.arange(0, size), tl.arange(0, dk), tl.arange(0, dv)
    valid = rows < count
    mask = valid[:, None]
    item = (first + rows) * heads + head
    key_item = (first + rows) * key_heads + head // (heads // key_heads)
    q = tl.load(query + key_item[:, None] * dk + dims[None, :], mask=mask, other=0.0)
    if per_channel:
        total = tl.load(sums + item[:, None] * dk + dims[None, :], mask=mask, other=0.0)
    else:
        total = tl.load(sums + item, mask=valid, other=0.0)[:, None]
    decayed = (q.to(tl.float32) * tl.exp(total) * scale).to(q.dtype)
    at = (tl.program_id(0) * heads + head).to(tl.int64) * (dk * dv)
    state = tl.load(before + at + dims[:, None] * dv + columns[None, :])
    result = tl.dot(decayed, state, input_precision="ieee")
    score = tl.load(scores + item[:, None] * size + rows[None, :], mask=mask, other=0.0)
    value_place = item[:, None] * dv + columns[None, :]
    written = tl.load(corrections + value_place, mask=mask, other=0.0)
    result = tl.dot(score, written, result, input_precision="ieee")
    tl.store(out + value_place, result.to(out.dtype.element_ty), mask=mask)
