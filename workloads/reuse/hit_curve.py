"""LRU hit rate of a prefix cache at every capacity, in one pass over the prefix chains.

The rules are those of `workloads.reuse.stack_distance`; a request hits its leading blocks that are
all held. The pool of an engine (`sim.kv.pool.KVCache`) does the same for requests that come one at
a time and fit into it. If the capacity is below a request's own length, the curve is that of a
plain LRU, where the head of the prompt evicts its tail; an engine would refuse that request. An
engine with many requests at once also holds their blocks, and caches a prompt only when it is
computed.
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
    """Tokens hit as a step function of the capacity."""

    capacity_blocks: Int64
    """Capacities ``[k]`` in blocks at which the hits grow, ascending."""
    hit_tokens: Int64
    """Prompt tokens ``[k]`` hit at each of these capacities, ascending."""
    prompt_tokens: int
    """Prompt tokens of all counted requests, hit or not."""
    block_tokens: int
    """Tokens per block."""

    @property
    def possible_tokens(self) -> int:
        """Prompt tokens that an unlimited cache hits."""
        return int(self.hit_tokens[-1]) if len(self.hit_tokens) else 0

    def hits_at(self, capacity_blocks: ArrayLike) -> Int64:
        """Return the prompt tokens hit at each capacity in blocks, in the shape of the argument."""
        grown = np.searchsorted(self.capacity_blocks, np.asarray(capacity_blocks), side="right")
        hits: Int64 = np.append(np.int64(0), self.hit_tokens)[grown]
        return hits

    def fraction_at(self, capacity_blocks: ArrayLike) -> Float64:
        """Return hits over prompt tokens at each capacity in blocks; NaN if no request is
        counted."""
        fraction: Float64 = self.hits_at(capacity_blocks) / (self.prompt_tokens or np.nan)
        return fraction

    def capacity_for(self, share_of_possible: float) -> int:
        """Return the fewest blocks that hit this share of what an unlimited cache hits.

        The share is above 0 and at most 1, else ValueError is raised. Returns 0 if nothing can be
        hit.
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
    """Compute hits by capacity for requests that arrive in the order of the chains.

    A request hits ``block_tokens`` for each leading block held, and at most its ``prompt_tokens``
    ``[n]``. Rows before ``since`` fill the cache and are not counted. ``distances``, if known, are
    the `stack_distances` of the chains. Raises TraceError as that function does.
    """
    if distances is None:
        distances = stack_distances(chains)
    reach = _chain_reach(distances, chains)
    tokens = tokens_of_accesses(chains, prompt_tokens)
    is_counted = reach < NEVER
    is_counted[: chains.offsets[since]] = False
    # A distance is at most the number of blocks, so counting by distance takes little memory.
    tokens_at = np.bincount(reach[is_counted], weights=tokens[is_counted]).astype(np.int64)
    capacity_blocks = np.flatnonzero(tokens_at)
    return HitCurve(
        capacity_blocks=capacity_blocks,
        hit_tokens=np.cumsum(tokens_at)[capacity_blocks],
        prompt_tokens=int(prompt_tokens[since:].sum()),
        block_tokens=chains.block_tokens,
    )


def _chain_reach(distances: Int64, chains: PrefixChains) -> Int64:
    """Return ``[accesses]`` the capacity at which a block and all before it in its chain are
    held."""
    limit = len(distances) + 1
    base = requests_of_accesses(chains) * (limit + 1)
    reach = np.maximum.accumulate(np.minimum(distances, limit) + base) - base
    return np.where(reach < limit, reach, NEVER)
