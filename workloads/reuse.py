"""Reuse of prefix blocks: how large a cache must be to still hold each, and what every size hits.

The cache is one LRU over blocks, shared by all requests. A request looks up its leading blocks,
then touches all its blocks, tail first, so that a block is younger than those that follow it;
missing blocks are cached at once. The stack distance of a block is the number of distinct blocks
touched since its last touch, itself included: a cache of C blocks still holds it if the distance is
at most C (Mattson et al., IBM Systems Journal 1970). A request hits its leading blocks that are all
held.

An access is a position in ``PrefixChains.ids``. A request touches each block of its chain once,
when it arrives; requests arrive in the order of the chains. The pool of an engine
(`sim.kv.pool.KVCache`) does the same for requests that come one at a time and fit into it. If the
capacity is below a request's own length, the curve is that of a plain LRU, where the head of the
prompt evicts its tail; an engine would refuse that request. An engine with many requests at once
also holds their blocks, and caches a prompt only when it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.arrays import Float64, Int64
from sim.errors import TraceError
from sim.request_table import PrefixChains


def previous_accesses(chains: PrefixChains) -> Int64:
    """Return ``[accesses]`` the previous access of the same block, -1 if there is none.

    Raises TraceError if a block appears twice in one chain, which no prefix can.
    """
    order = np.argsort(chains.ids, kind="stable")
    in_order = chains.ids[order]
    is_again = in_order[1:] == in_order[:-1]
    previous = np.full(len(order), -1, np.int64)
    previous[order[1:][is_again]] = order[:-1][is_again]
    requests = requests_of_accesses(chains)
    twice = np.flatnonzero(previous >= chains.offsets[:-1][requests])
    if len(twice):
        access = twice[0]
        raise TraceError(
            f"prefix block {chains.ids[access]} stands twice in the chain of request "
            f"{requests[access]} (from 0, in order of arrival); ids must name whole prefixes"
        )
    return previous


def requests_of_accesses(chains: PrefixChains) -> Int64:
    """Return ``[accesses]`` the request that each access belongs to."""
    return np.repeat(np.arange(len(chains.tokens)), np.diff(chains.offsets))


def tokens_of_accesses(chains: PrefixChains, prompt_tokens: Int64) -> Int64:
    """Return ``[accesses]`` the prompt tokens that each block holds.

    The last block of a prompt may be partial. Blocks beyond the prompt (in a chain that covers the
    output) hold none of it.
    """
    lengths = np.diff(chains.offsets)
    place = np.arange(len(chains.ids)) - np.repeat(chains.offsets[:-1], lengths)
    left = np.repeat(prompt_tokens, lengths) - place * chains.block_tokens
    tokens: Int64 = np.clip(left, 0, chains.block_tokens)
    return tokens


def sums_before_below(keys: Int64, weights: Int64, ends: Int64, below: Int64) -> Int64:
    """Sum, for each query, the weights of the points ``[0, end)`` whose key is below a limit.

    ``keys`` ``[n]`` are any numbers, ``weights`` is ``[k, n]``, ``ends`` ``[m]`` lie in 0..n and
    ``below`` ``[m]`` are the limits; returns ``[k, m]``. This is an offline two-dimensional prefix
    sum by a wavelet matrix (Claude and Navarro, 2012), of which one level is kept at a time. It
    takes O((n + m) log n), all in numpy.
    """
    distinct, rank = np.unique(keys, return_inverse=True)
    limit = np.searchsorted(distinct, below)
    sums = np.zeros((len(weights), len(ends)), np.int64)
    first, last = np.zeros_like(ends), ends.copy()
    # Among points whose higher bits equal the limit's, those with 0 where it has 1 are below it.
    for bit in reversed(range(len(distinct).bit_length())):
        is_zero = (rank >> bit) & 1 == 0
        zeros = _running_sum(is_zero.astype(np.int64))
        has_one = (limit >> bit) & 1 == 1
        for row, weight in zip(sums, weights, strict=True):
            running = _running_sum(np.where(is_zero, weight, 0))
            row += np.where(has_one, running[last] - running[first], 0)
        num_zeros = zeros[-1]
        first = np.where(has_one, num_zeros + first - zeros[first], zeros[first])
        last = np.where(has_one, num_zeros + last - zeros[last], zeros[last])
        order = np.argsort(~is_zero, kind="stable")
        rank, weights = rank[order], weights[:, order]
    return sums


def _running_sum(values: Int64) -> Int64:
    """Return ``[n + 1]`` the sum of the values before each position."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


NEVER = 1 << 62
"""The distance of a block that no request touched before."""


def stack_distances(chains: PrefixChains, previous: Int64 | None = None) -> Int64:
    """Return ``[accesses]`` the stack distance of each block at its request's lookup, or `NEVER`.

    Requests arrive in the order of the chains. ``previous``, if known, is `previous_accesses` of
    the chains. The result is exact for any ids, also if a block does not always have the same
    parent. Raises TraceError if a block appears twice in one chain.

    Blocks that one request touches in a row, and a later one again, stay neighbors in the LRU, so
    only the first of such a run is counted: O(A + R log R) for A accesses in R runs.
    """
    if previous is None:
        previous = previous_accesses(chains)
    runs = _find_runs(chains, previous)
    seen = runs.new_before + _old_turns_before(runs)
    head_distance = np.where(runs.is_new, NEVER, seen - runs.last_turn)
    distance = np.repeat(head_distance, runs.blocks)
    # A block one deeper in a run is one turn older, with no other touch in between.
    depth = np.arange(len(distance)) - np.repeat(runs.head, runs.blocks)
    distance[distance < NEVER] += depth[distance < NEVER]
    return distance


class _Runs(NamedTuple):
    """Runs of blocks of one request, all new or last touched in a row by one earlier request.

    A turn is the position of a touch in the order of all touches: requests in their order, the
    blocks of each from the tail.
    """

    head: Int64
    """The access of the run's first block."""
    blocks: Int64
    request: Int64
    is_new: NDArray[np.bool_]
    last_turn: Int64
    """The latest turn of a block of the run before this request, which is that of its first
    block."""
    new_before: Int64
    """Number of new blocks in all requests before the run's."""


def _find_runs(chains: PrefixChains, previous: Int64) -> _Runs:
    starts, ends = chains.offsets[:-1], chains.offsets[1:]
    is_first_of_chain = np.zeros(len(previous) + 1, bool)
    is_first_of_chain[starts] = True
    is_head = is_first_of_chain[:-1].copy()
    is_old = previous >= 0
    goes_on = (previous[1:] == previous[:-1] + 1) & ~is_first_of_chain[previous[1:]]
    # A new block ends a run: access 0, which would continue -1, is always a chain's first.
    is_head[1:] |= np.where(is_old[1:], ~goes_on, is_old[:-1])

    head = np.flatnonzero(is_head)
    blocks = np.diff(np.append(head, len(previous)))
    request = np.searchsorted(ends, head, side="right")
    is_new = ~is_old[head]
    last_request = np.searchsorted(ends, previous[head], side="right")
    last_turn = starts[last_request] + ends[last_request] - 1 - previous[head]
    new_by_run = np.append(0, np.cumsum(np.where(is_new, blocks, 0)))
    new_before = new_by_run[np.searchsorted(request, request)]
    return _Runs(head, blocks, request, is_new, last_turn, new_before)


def _old_turns_before(runs: _Runs) -> Int64:
    """Count, for each run, the relevant touches of old blocks by earlier requests.

    To count distinct blocks after turn p, count the touches since then whose block was last touched
    at p or earlier. Touches up to p always qualify, so counting from the start adds p + 1.
    """
    is_old = ~runs.is_new
    last, request = runs.last_turn[is_old], runs.request[is_old]
    first = last - runs.blocks[is_old] + 1
    # An earlier run with turns first..last counts clip(p + 1 - first, 0, last + 1 - first): a
    # ramp that starts at first, minus the ramp that starts at last + 1.
    keys = np.stack((first, last + 1), axis=1).ravel()
    signs = np.tile(np.array([1, -1]), len(first))
    num_earlier = 2 * np.searchsorted(request, request)
    count, total = sums_before_below(keys, np.stack((signs, signs * keys)), num_earlier, last + 1)
    turns = np.zeros(len(is_old), np.int64)
    turns[is_old] = count * (last + 1) - total
    return turns


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
