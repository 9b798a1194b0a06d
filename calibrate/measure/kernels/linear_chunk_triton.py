"""Gated delta rule over prompts in Triton, chunk by chunk of 64 tokens.

Within a chunk, let G_i be the sum of log decays up to its i-th token, S the state before it, and
u_i the correction that token i writes (beta_i (v_i - S_i^T k_i), S_i the decayed state it meets).
Unrolling the recurrence gives one unit lower-triangular system, with A_ij = beta_i sum_d k_id k_jd
exp(G_id - G_jd) below the diagonal and 0 elsewhere:
  U = (I + A)^-1 beta (V - (exp(G) K) S) = U' - W S
  O = (exp(G) Q) S + P U,  P_ij = sum_d q_id k_jd exp(G_id - G_jd) for j <= i
  S' = diag(exp(G_last)) S + (exp(G_last - G) K)^T U
Everything except the S of each chunk is computed for all chunks at once; only `carry_states`
processes them in order. Exponents are never positive, so that strong decay cannot overflow.

Rows are tokens, of prompts of equal length one after another; the last chunk of a prompt is masked.
With ``per_channel`` a decay is [row, head, dk] (KDA), else [row, head] (GDN).
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 64


@triton.jit
def chunk_rows(tokens: tl.tensor, chunks: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """Return the first row of this program's chunk, and its number of rows."""
    chunk = tl.program_id(0)
    first = chunk % chunks * size
    return chunk // chunks * tokens + first, tl.minimum(tokens - first, size)


@triton.jit(do_not_specialize=["tokens", "chunks", "heads"])
def sum_decays(
    log_decay: tl.tensor,
    sums: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
    size: tl.constexpr,
    dk: tl.constexpr,
    per_channel: tl.constexpr,
) -> None:
    """Sum the log decays from the start of each chunk. Grid: (chunks of all prompts, heads)."""
    first, count = chunk_rows(tokens, chunks, size)
    rows = tl.arange(0, size)
    item = (first + rows) * heads + tl.program_id(1)
    if per_channel:
        place = item[:, None] * dk + tl.arange(0, dk)[None, :]
        mask = (rows < count)[:, None]
    else:
        place = item
        mask = rows < count
    summed = tl.cumsum(tl.load(log_decay + place, mask=mask, other=0.0), 0)
    tl.store(sums + place, summed, mask=mask)


@triton.jit(do_not_specialize=["tokens", "chunks", "heads", "key_heads"])
def scores_by_head(
    query: tl.tensor,
    keys: tl.tensor,
    sums: tl.tensor,
    beta: tl.tensor,
    system: tl.tensor,
    scores: tl.tensor,
    scale: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
    key_heads: tl.tensor,
    size: tl.constexpr,
    dk: tl.constexpr,
) -> None:
    """Compute A (float32) and P [row, head, size] if a head has one decay. Grid as in
    `sum_decays`."""
    first, count = chunk_rows(tokens, chunks, size)
    head = tl.program_id(1)
    rows = tl.arange(0, size)
    valid = rows < count
    dims = tl.arange(0, dk)
    item = (first + rows) * heads + head
    key_item = (first + rows) * key_heads + head // (heads // key_heads)
    k = tl.load(keys + key_item[:, None] * dk + dims[None, :], mask=valid[:, None], other=0.0)
    # Loaded a second time, transposed: cheaper than to transpose in registers.
    k_t = tl.load(keys + key_item[None, :] * dk + dims[:, None], mask=valid[None, :], other=0.0)
    q = tl.load(query + key_item[:, None] * dk + dims[None, :], mask=valid[:, None], other=0.0)
    total = tl.load(sums + item, mask=valid, other=0.0)
    lower = (rows[:, None] >= rows[None, :]) & valid[:, None]
    decay = tl.exp(tl.where(lower, total[:, None] - total[None, :], float("-inf")))
    strict = rows[:, None] > rows[None, :]
    b = tl.load(beta + item, mask=valid, other=0.0)
    a = tl.dot(k, k_t, input_precision="ieee") * decay * b[:, None]
    p = tl.dot(q, k_t, input_precision="ieee") * decay * scale
    place = item[:, None] * size + rows[None, :]
    tl.store(system + place, tl.where(strict, a, 0.0), mask=valid[:, None])
    tl.store(scores + place, p.to(scores.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["tokens", "chunks", "heads", "key_heads"])
def scores_by_channel(
    query: tl.tensor,
    keys: tl.tensor,
    sums: tl.tensor,
    beta: tl.tensor,
    system: tl.tensor,
    scores: tl.tensor,
    scale: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    heads: tl.tensor,
    key_heads: tl.tensor,
    size: tl.constexpr,
    part: tl.constexpr,
    dk: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Compute A and P if each channel has a decay, for ``part`` rows per program.

    Grid: (chunks of all prompts, heads, size / part). Columns before these rows are a product of
    rows decayed since the first of them and columns decayed until then. The square at the diagonal
    has no such point between rows and columns, and is summed column by column.
    """
    first, count = chunk_rows(tokens, chunks, size)
    head = tl.program_id(1)
    begin = tl.program_id(2) * part
    columns, dims = tl.arange(0, size), tl.arange(0, dk)
    if begin >= count:
        return
    rows = begin + tl.arange(0, part)
    valid = rows < count
    is_here = valid[:, None]
    group = heads // key_heads
    item = (first + rows) * heads + head
    key_item = (first + rows) * key_heads + head // group

    # Columns of earlier parts: none in the first, whose sums stay zero.
    a = tl.zeros((part, size), tl.float32)
    p = tl.zeros((part, size), tl.float32)
    element = keys.dtype.element_ty
    is_before = (columns < begin)[None, :]
    other = ((first + columns) * heads + head)[None, :] * dk
    other_key = ((first + columns) * key_heads + head // group)[None, :] * dk
    for channel in range(0, tl.where(begin > 0, dk, 0), block):
        some = channel + tl.arange(0, block)
        start = tl.load(sums + ((first + begin) * heads + head) * dk + some)
        row_total = tl.load(sums + item[:, None] * dk + some[None, :], mask=is_here, other=0.0)
        since = tl.exp(tl.minimum(row_total - start[None, :], 0.0))
        row_place = key_item[:, None] * dk + some[None, :]
        row_k = tl.load(keys + row_place, mask=is_here, other=0.0).to(tl.float32) * since
        row_q = tl.load(query + row_place, mask=is_here, other=0.0).to(tl.float32) * since
        total_t = tl.load(sums + other + some[:, None], mask=is_before, other=0.0)
        k_t = tl.load(keys + other_key + some[:, None], mask=is_before, other=0.0)
        until = tl.exp(tl.where(is_before, start[:, None] - total_t, float("-inf")))
        decayed_t = (k_t.to(tl.float32) * until).to(element)
        a = tl.dot(row_k.to(element), decayed_t, a, input_precision="ieee")
        p = tl.dot(row_q.to(element), decayed_t, p, input_precision="ieee")

    place = item[:, None] * dk + dims[None, :]
    key_place = key_item[:, None] * dk + dims[None, :]
    k = tl.load(keys + key_place, mask=is_here, other=0.0).to(tl.float32)
    q = tl.load(query + key_place, mask=is_here, other=0.0).to(tl.float32)
    total = tl.load(sums + place, mask=is_here, other=0.0)
    for step in range(part):
        column = begin + step
        here = column < count
        column_k = tl.load(
            keys + ((first + column) * key_heads + head // group) * dk + dims, mask=here, other=0.0
        ).to(tl.float32)
        column_total = tl.load(
            sums + ((first + column) * heads + head) * dk + dims, mask=here, other=0.0
        )
        decayed = column_k[None, :] * tl.exp(tl.minimum(total - column_total[None, :], 0.0))
        at = columns[None, :] == column
        a = tl.where(at, tl.sum(k * decayed, 1)[:, None], a)
        p = tl.where(at, tl.sum(q * decayed, 1)[:, None], p)

    b = tl.load(beta + item, mask=valid, other=0.0)
    a = tl.where(rows[:, None] > columns[None, :], a * b[:, None], 0.0)
    p = tl.where(rows[:, None] >= columns[None, :], p * scale, 0.0)
    out = item[:, None] * size + columns[None, :]
    tl.store(system + out, a, mask=is_here)
    tl.store(scores + out, p.to(scores.dtype.element_ty), mask=is_here)
