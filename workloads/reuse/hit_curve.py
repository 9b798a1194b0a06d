"""LRU hit rate of a prefix cache at every capacity, in one pass over the prefix chains.

The rules are those of `workloads.reuse.stack_distance`, and what a request hits are its leading
blocks that are all held. That is what the pool of an engine (`sim.kv.pool.KVCache`) does for
requests that come one at a time and fit into it. Where the capacity is below a request's own
length it is what a plain LRU does, whose head pushes out its tail; an engine would refuse that
request. An engine with many requests at once also holds their blocks, and inserts a prompt when it
is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sim.arrays import Float64, Int64
from sim.request_table import PrefixChains
from workloads.reuse.stack_distance import (
    NEVER,
    requests_of_accesses,
    stack_distances,
    tokens_of_accesses,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HitCurve:
    """Tokens hit by capacity: a step function, and what is read off it."""

    capacity_blocks: Int64
    """``[k]`` capacities at which the hits grow, ascending."""
    hit_tokens: Int64
    """``[k]`` prompt tokens hit at that capacity, ascending."""
    prompt_tokens: int
    """Prompt tokens of all requests counted, hit or not."""
    block_tokens: int

    @property
    def possible_tokens(self) -> int:
        """Prompt tokens that a cache without limit hits."""
        return int(self.hit_tokens[-1]) if len(self.hit_tokens) else 0

    def hits_at(self, capacity_blocks: ArrayLike) -> Int64:
        """Prompt tokens hit at each capacity in blocks; the shape is kept."""
        grown = np.searchsorted(self.capacity_blocks, np.asarray(capacity_blocks), side="right")
        hits: Int64 = np.append(np.int64(0), self.hit_tokens)[grown]
        return hits

    def fraction_at(self, capacity_blocks: ArrayLike) -> Float64:
        """Hits over prompt tokens at each capacity in blocks; NaN where no request is counted."""
        fraction: Float64 = self.hits_at(capacity_blocks) / (self.prompt_tokens or np.nan)
        return fraction

    def capacity_for(self, share_of_possible: float) -> int:
        """The fewest blocks that hit this share, above 0, of what a cache without limit hits.

        0 where nothing can be hit.
        """
        if not 0 < share_of_possible <= 1:
            raise ValueError(f"share_of_possible is {share_of_possible}; expected above 0, up to 1")
        if not self.possible_tokens:
            return 0
        needed = share_of_possible * self.possible_tokens
        return int(self.capacity_blocks[np.searchsorted(self.hit_tokens, needed)])


def hit_curve(
    chains: PrefixChains,
    prompt_tokens: Int64,
    *,
    since: int = 0,
    distances: Int64 | None = None,
) -> HitCurve:
    """Hits by capacity of requests that arrive in the order of the chains.

    A request hits ``block_tokens`` for each leading block held, and at most its prompt tokens
    ``[n]``. Rows before ``since`` fill the cache and are not counted. ``distances`` are
    `stack_distances` of the chains, where they are known. Raises TraceError as these do.
    """
    if distances is None:
        distances = stack_distances(chains)
    reach = _of_the_deepest(distances, chains)
    tokens = tokens_of_accesses(chains, prompt_tokens)
    is_counted = reach < NEVER
    is_counted[: chains.offsets[since]] = False
    # No distance is above the number of blocks, so a count by distance is small.
    tokens_at = np.bincount(reach[is_counted], weights=tokens[is_counted]).astype(np.int64)
    capacity_blocks = np.flatnonzero(tokens_at)
    return HitCurve(
        capacity_blocks=capacity_blocks,
        hit_tokens=np.cumsum(tokens_at)[capacity_blocks],
        prompt_tokens=int(prompt_tokens[since:].sum()),
        block_tokens=chains.block_tokens,
    )


def _of_the_deepest(distances: Int64, chains: PrefixChains) -> Int64:
    """``[accesses]`` the capacity at which a block and all before it in its chain are held."""
    limit = len(distances) + 1
    base = requests_of_accesses(chains) * (limit + 1)
    reach = np.maximum.accumulate(np.minimum(distances, limit) + base) - base
    return np.where(reach < limit, reach, NEVER)
