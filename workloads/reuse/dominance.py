"""How much weight lies below and before: offline two-dimensional prefix sums."""

from __future__ import annotations

import numpy as np

from sim.arrays import Int64


def sums_before_below(keys: Int64, weights: Int64, ends: Int64, below: Int64) -> Int64:
    """For each query, the sums of the weights of the points ``[0, end)`` with a key under a limit.

    ``keys`` ``[n]`` are any numbers, ``weights`` is ``[k, n]``, ``ends`` ``[m]`` lie in 0..n and
    ``below`` ``[m]`` are the limits; returns ``[k, m]``. Time O((n + m) log n), all of it in numpy:
    a wavelet matrix (Claude and Navarro, 2012), kept a level at a time.
    """
    distinct, rank = np.unique(keys, return_inverse=True)
    limit = np.searchsorted(distinct, below)
    sums = np.zeros((len(weights), len(ends)), np.int64)
    first, last = np.zeros_like(ends), ends.copy()
    # Of the points whose higher bits equal the limit's, those with a 0 where it has a 1 are below.
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
    """``[n + 1]``: the sum before each place."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
