"""Gated delta rule in Triton: one token per sequence, whose state is read and written once.

A head keeps a state S of [dk, dv] in float32. A token decays it (each of dk channels by its own
factor in KDA, arXiv 2510.26692; all by one in Gated DeltaNet, arXiv 2412.06464), replaces a share
beta of what it holds for the key k by the value v, and reads it with the query q: S = diag(alpha)
S; S += beta k (v - S^T k)^T; o = S^T q.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["slots", "heads", "key_heads"])
def delta_step(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    slots: tl.tensor,
    states: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    heads: tl.tensor,
    key_heads: tl.tensor,
    dk: tl.constexpr,
    dv: tl.constexpr,
    block_v: tl.constexpr,
    per_channel: tl.constexpr,
) -> None:
    """Update ``states`` [slots, heads, dk, dv] by one token and read them. Grid: (heads * dv /
    block_v, seqs)."""
    tile, seq = tl.program_id(0), tl.program_id(1)
    tiles: tl.constexpr = dv // block_v
    head = tile // tiles
    rows = tl.arange(0, dk)
    columns = (tile % tiles) * block_v + tl.arange(0, block_v)
    item = seq * heads + head
    key_place = (seq * key_heads + head // (heads // key_heads)) * dk + rows
    slot = tl.load(slots + seq).to(tl.int64)
    place = states + (slot * heads + head) * (dk * dv) + rows[:, None] * dv + columns[None, :]
    state = tl.load(place)
    k = tl.load(keys + key_place).to(tl.float32)
    q = tl.load(query + key_place).to(tl.float32) * scale
    v = tl.load(values + item * dv + columns).to(tl.float32)
    if per_channel:
        state = state * tl.exp(tl.load(log_decay + item * dk + rows))[:, None]
    else:
        state = state * tl.exp(tl.load(log_decay + item))
    correction = tl.load(beta + item) * (v - tl.sum(state * k[:, None], 0))
    state = state + k[:, None] * correction[None, :]
    read = tl.sum(state * q[:, None], 0)
    tl.store(place, state)
    tl.store(out + item * dv + columns, read.to(out.dtype.element_ty))
