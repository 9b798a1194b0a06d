"""How evenly decode attention fills the device: a split-KV schedule, played through.

A decode kernel cuts each sequence's KV into pieces and hands (piece, KV head) units to the SMs as
they come free. Units of unequal sequences do not fill whole waves: with 8 to 60 sequences and 8 KV
heads the last SM works half as long again as the mean, with hundreds of sequences hardly longer.
The rule for cutting is FlashAttention-3's dynamic one: pieces of at most 1.1 times an SM's share.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from functools import cache

import numpy as np
from numpy.typing import NDArray

_TILE_TOKENS = 128
_MEAN_TOKENS = 16384
"""Long enough that rounding to tiles does not matter."""
_MOST_SPLITS = 32
_SHARE = 1.1
_DRAWS = 8
_SPREAD = 0.5
"""Coefficient of variation of the contexts in a serving batch; 0.15 to 0.9 were seen, and the
schedule hardly depends on it."""


@cache
def imbalance_table(
    max_num_seqs: int, kv_heads: int, num_sms: int, *, equal_contexts: bool = False
) -> NDArray[np.float64]:
    """Time of the last SM over the mean, by number of sequences: ``[max_num_seqs + 1]``.

    ``equal_contexts``: all sequences as long as each other, as in a benchmark's grid. Played
    through at a few dozen batch sizes and interpolated between them.
    """
    steps = {n * 2**power for power in range(4, 13) for n in (2, 3)}
    every = sorted({*range(1, 25), *steps})
    sizes = every[: bisect_left(every, max_num_seqs) + 1]
    rng = np.random.default_rng(0)  # a table, not a simulation: always the same draws
    sigma = math.sqrt(math.log1p(_SPREAD**2))
    spans = []
    for seqs in sizes:
        draws = 1 if equal_contexts else max(1, min(_DRAWS, 256 // seqs))
        lengths = _MEAN_TOKENS * np.exp(rng.normal(-(sigma**2) / 2, sigma, (draws, seqs)))
        if equal_contexts:
            lengths = np.full((1, seqs), float(_MEAN_TOKENS))
        spans.append(np.mean([_imbalance(row, kv_heads, num_sms) for row in lengths]))
    whole = np.array(spans) * sizes
    if not equal_contexts:  # one more sequence ends no earlier, whatever the draws
        whole = np.maximum.accumulate(whole)
    table: NDArray[np.float64] = np.interp(np.arange(max_num_seqs + 1), sizes, whole / sizes)
    table[0] = 1.0
    return table


def _imbalance(lengths: NDArray[np.float64], kv_heads: int, num_sms: int) -> float:
    """Units in batch order, each to the SM that is free first."""
    tiles = np.ceil(lengths / _TILE_TOKENS).astype(int)
    share = math.ceil(tiles.sum() * _SHARE * kv_heads / num_sms)
    busy = [0] * num_sms
    for tile_count in tiles.tolist():
        splits = min(math.ceil(tile_count / share), _MOST_SPLITS)
        piece = math.ceil(tile_count / splits)
        for start in range(0, tile_count, piece):
            size = min(piece, tile_count - start)
            for _ in range(kv_heads):
                heapq.heapreplace(busy, busy[0] + size)
    return max(busy) * num_sms / (int(tiles.sum()) * kv_heads)
