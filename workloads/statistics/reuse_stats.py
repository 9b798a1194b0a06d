"""Statistics of prefix reuse: how much repeats, how soon, and how many blocks lie between."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.request_table import PrefixChains, RequestTable
from workloads.reuse import (
    NEVER,
    HitCurve,
    hit_curve,
    previous_accesses,
    requests_of_accesses,
    stack_distances,
)

PERCENTILES = (25, 50, 75, 90, 99)
MATCHED_PERCENTILES = (50, 75, 90, 99)
WORKING_SET_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
WINDOWS_S = (60, 300, 600)


class Reuse:
    """The chains of a table as block accesses in the order of its rows, analyzed once.

    Raises TraceError if a block appears twice in one chain.
    """

    def __init__(self, table: RequestTable, chains: PrefixChains) -> None:
        """Analyze ``chains``: the table's own, or the same prefixes in other blocks."""
        self.table = table
        self.chains = chains
        self.previous = previous_accesses(chains)
        self.requests = requests_of_accesses(chains)
        self.distances = stack_distances(chains, self.previous)
        self.has_times = table.is_open_loop and bool(np.ptp(table.arrival_ns))

    def curve(self, *, since: int = 0) -> HitCurve:
        """Compute the LRU hits by capacity; rows before ``since`` fill the cache and are not
        counted."""
        tokens = self.table.prompt_tokens
        return hit_curve(self.chains, tokens, since=since, distances=self.distances)

    def first_uses_ns(self) -> Int64:
        """Return ``[distinct blocks]`` when each block is first used, in order: the working set's
        growth."""
        return self.table.arrival_ns[self.requests[self.previous < 0]]

    def reuse_times_s(self) -> NDArray[np.float64]:
        """Return the seconds since the last access, for each access of a block seen before."""
        is_again = self.previous >= 0
        now, then = self.requests[is_again], self.requests[self.previous[is_again]]
        arrival_ns = self.table.arrival_ns
        times: NDArray[np.float64] = (arrival_ns[now] - arrival_ns[then]) / NS_PER_S
        return times

    def distances_at_turn(self) -> Int64:
        """Return stack distances at a block's own turn, of all accesses of blocks seen before.

        Papers count so, over the sequence of accesses, where deeper blocks of the same request come
        before it. A lookup comes before all of them.
        """
        deeper = self.chains.offsets[1:][self.requests] - 1 - np.arange(len(self.previous))
        is_again = self.distances < NEVER
        distances: Int64 = self.distances[is_again] + deeper[is_again]
        return distances


def reuse_statistics(reuse: Reuse, curve: HitCurve) -> dict[str, float]:
    """Compute statistics of prefix blocks; NaN if there is nothing to count.

    ``prefix_hit_fraction`` is the share of all prompt tokens that an earlier request already held,
    as an unlimited cache sees it. Reuse times and stack distances are over the accesses of blocks
    seen before (see `Reuse`), ``matched_blocks`` over requests. ``working_set_blocks_<percent>pct``
    are the distinct blocks used in the first part of the time from first to last arrival;
    ``distinct_blocks_<w>s`` are those of a whole window of w seconds, on average. Times are NaN if
    not all arrivals are known in advance.
    """
    chains = reuse.chains
    num_accesses = len(chains.ids)
    uses = np.sort(np.unique(chains.ids, return_counts=True)[1])
    top = uses[len(uses) - round(len(uses) / 100) :] if len(uses) else uses
    matched_blocks = _leading_seen(reuse)
    return {
        "prefix_block_tokens": chains.block_tokens,
        "prefix_blocks": num_accesses,
        "distinct_prefix_blocks": len(uses),
        "prefix_hit_fraction": float(curve.possible_tokens / (curve.prompt_tokens or np.nan)),
        "requests_with_hit_fraction": _share(matched_blocks > 0),
        "blocks_used_once_fraction": _share(uses == 1),
        "top_1pct_blocks_access_fraction": float(top.sum() / (num_accesses or np.nan)),
        **_percentiles(
            "reuse_time_s", reuse.reuse_times_s() if reuse.has_times else (), PERCENTILES
        ),
        **_percentiles("stack_distance_blocks", reuse.distances_at_turn(), PERCENTILES),
        **_percentiles("matched_blocks", matched_blocks, MATCHED_PERCENTILES),
        **_working_set(reuse),
        **{f"distinct_blocks_{w}s": _distinct_by_window(reuse, w) for w in WINDOWS_S},
    }


def _leading_seen(reuse: Reuse) -> Int64:
    """Return ``[n]`` the leading blocks of each request that an earlier one used."""
    starts, ends = reuse.chains.offsets[:-1], reuse.chains.offsets[1:]
    new = np.flatnonzero(reuse.previous < 0)
    first_new = np.append(new, len(reuse.previous))[np.searchsorted(new, starts)]
    leading: Int64 = np.minimum(first_new, ends) - starts
    return leading


def _working_set(reuse: Reuse) -> dict[str, float]:
    names = [f"working_set_blocks_{share * 100:.0f}pct" for share in WORKING_SET_SHARES]
    if not reuse.has_times:
        return dict.fromkeys(names, np.nan)
    start_ns, end_ns = reuse.table.arrival_ns[[0, -1]]
    until_ns = start_ns + np.array(WORKING_SET_SHARES) * (end_ns - start_ns)
    blocks = np.searchsorted(reuse.first_uses_ns(), until_ns, side="right").tolist()
    return dict(zip(names, blocks, strict=True))


def _distinct_by_window(reuse: Reuse, window_s: int) -> float:
    """Return the mean number of blocks in a whole window that were not used earlier in it."""
    arrival_ns = reuse.table.arrival_ns
    if not reuse.has_times:
        return np.nan
    window_of_request = (arrival_ns - arrival_ns[0]) // (window_s * NS_PER_S)
    num_windows = int(window_of_request[-1])
    if num_windows < 1:
        return np.nan
    window = window_of_request[reuse.requests]
    is_first = (reuse.previous < 0) | (window_of_request[reuse.requests[reuse.previous]] != window)
    return float((is_first & (window < num_windows)).sum() / num_windows)


def _share(is_so: NDArray[np.bool_]) -> float:
    return float(is_so.mean()) if len(is_so) else np.nan


def _percentiles(name: str, values: ArrayLike, percentiles: tuple[int, ...]) -> dict[str, float]:
    values = np.asarray(values)
    if not len(values):
        return {f"{name}_p{p}": np.nan for p in percentiles}
    found = np.percentile(values, percentiles)
    return {f"{name}_p{p}": float(v) for p, v in zip(percentiles, found, strict=True)}
