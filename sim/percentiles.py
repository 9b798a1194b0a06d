"""Mean, percentiles and maximum, of one array or of more values than one wants in memory.

A percentile is the smallest value that at least that share of the (weighted) values do not
exceed, so each is a value that occurred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int64 = NDArray[np.int64]
Chunks = Callable[[], Iterable[tuple[Int64, Int64]]]

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_SHARES = {name: int(name[1:]) / 100 for name in STATISTICS[1:-1]}


def statistics(values: Float, weights: Int64 | None = None) -> dict[str, float | None]:
    """Statistics of the values that are not NaN; None where there are none."""
    kept = ~np.isnan(values)
    values = values[kept]
    if not len(values):
        return dict.fromkeys(STATISTICS)
    weights = np.ones(len(values), np.int64) if weights is None else weights[kept]
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    cumulative = weights.cumsum()
    result: dict[str, float | None] = {"mean": float(np.average(values, weights=weights))}
    for name, share in _SHARES.items():
        result[name] = float(values[_rank(cumulative, share * int(cumulative[-1]))])
    result["max"] = float(values[-1])
    return result


def chunked_statistics(chunks: Chunks) -> tuple[dict[str, float | None], int]:
    """Statistics of integers with weights that come in chunks, and the weights' sum.

    ``chunks()`` yields (values >= 0, weights > 0) and is called twice: to see which narrow bin
    each percentile falls into, then to look at the values of those bins alone.
    """
    counts = np.zeros(_NUM_BINS, np.int64)
    total = summed = highest = 0
    for values, weights in chunks():
        if len(values):
            binned = np.bincount(_bin(values), weights)
            counts[: len(binned)] += binned.astype(np.int64)
            total += int(weights.sum())
            summed += int((values * weights).sum())
            highest = max(highest, int(values.max()))
    if not total:
        return dict.fromkeys(STATISTICS), 0

    cumulative = counts.cumsum()
    bins = {name: _rank(cumulative, share * total) for name, share in _SHARES.items()}
    inside: dict[int, list[tuple[Int64, Int64]]] = {b: [] for b in bins.values()}
    for values, weights in chunks():
        of_value = _bin(values)
        for b, parts in inside.items():
            chosen = of_value == b
            parts.append((values[chosen], weights[chosen]))

    result: dict[str, float | None] = {"mean": summed / total}
    for name, share in _SHARES.items():
        parts = inside[bins[name]]
        values, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(values, kind="stable")
        below = int(cumulative[bins[name]]) - int(weights.sum())
        rank = _rank(below + weights[order].cumsum(), share * total)
        result[name] = float(values[order][rank])
    result["max"] = float(highest)
    return result, total


def _rank(cumulative: Int64, target: float) -> int:
    return int(cumulative.searchsorted(target - 1e-9))


# Bins are the leading bits of the value as a float: their order is the values' order, and each
# spans a thousandth of its value or less.
_DROPPED_BITS = 13
_NUM_BINS = (0x7F800000 >> _DROPPED_BITS) + 1


def _bin(values: Int64) -> Int64:
    bits = values.astype(np.float32).view(np.uint32) >> np.uint32(_DROPPED_BITS)
    return bits.astype(np.int64)
