"""The data of a trace's figures: distributions and curves, thinned to what can be seen.

All values are JSON-able. Times are in seconds from the first arrival.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Float64, Int64
from sim.clock import NS_PER_S
from workloads.reuse import HitCurve
from workloads.statistics.arrival_stats import window_counts
from workloads.statistics.reuse_stats import Reuse

Series = dict[str, Any]

_MAX_POINTS = 240
_MAX_WINDOWS = 90
_NICE_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)
_ALWAYS = (0.01, 0.5, 0.9, 0.99, 1.0)
_BINS_A_DECADE = 16
_CELLS = 28
_NEARLY_ALL = 0.999


def arrival_series(arrival_ns: Int64) -> Series | None:
    """Count requests in equal whole windows, about 90 of them; None for too short a trace."""
    since_ns = arrival_ns - (arrival_ns[0] if len(arrival_ns) else 0)
    span_s = int(since_ns[-1]) / NS_PER_S if len(since_ns) else 0.0
    widths_s = [w for w in _NICE_S if span_s / w <= _MAX_WINDOWS] or [span_s / _MAX_WINDOWS]
    counts = window_counts(since_ns, widths_s[0]) if span_s else np.zeros(0, np.int64)
    return {"window_s": widths_s[0], "counts": counts.tolist()} if len(counts) >= 4 else None


def gap_series(arrival_ns: Int64) -> Series | None:
    """Return the share of gaps at or below a length, and their mean; None if there are too few."""
    gaps_s = np.diff(arrival_ns) / NS_PER_S
    if len(gaps_s) < 20 or not gaps_s.any():
        return None
    return {"mean_s": float(gaps_s.mean())} | distribution("gap_s", gaps_s)


def distribution(name: str, values: Float64 | Int64) -> Series:
    """Return points of the empirical distribution function, under ``name`` and ``share``.

    If there are many values the points lie evenly in share, and more closely towards both ends.
    """
    ordered = np.sort(values)
    n = len(ordered)
    tail = np.geomspace(1 / max(n, 1), 0.02, _MAX_POINTS // 4)
    shares = np.concatenate(
        (tail, np.linspace(0.02, 0.98, _MAX_POINTS // 2), 1 - tail[::-1], _ALWAYS)
    )
    ranks = np.unique(np.clip(np.ceil(shares * n - 1e-6).astype(np.int64), 1, max(n, 1)))
    if not n:
        return {name: [], "share": []}
    return {name: _short(ordered[ranks - 1]), "share": _short(ranks / n)}


def length_series(tokens: Int64) -> Series | None:
    """Count requests by tokens, in equally wide bins on a logarithmic axis; 0 is counted apart."""
    positive = tokens[tokens > 0]
    if not len(positive):
        return None
    edges = _log_edges(positive, _BINS_A_DECADE)
    counts, _ = np.histogram(positive, edges)
    return {"edges": edges.tolist(), "counts": counts.tolist(), "zeros": int((tokens == 0).sum())}


def joint_series(prompt_tokens: Int64, output_tokens: Int64) -> Series | None:
    """Count requests by input and output tokens: ``counts[i][j]`` for input bin i and output bin
    j."""
    both = (prompt_tokens > 0) & (output_tokens > 0)
    if both.sum() < 20:
        return None
    x, y = prompt_tokens[both], output_tokens[both]
    x_edges, y_edges = (_log_edges(v, _CELLS / max(_decades(v), 1)) for v in (x, y))
    counts, _, _ = np.histogram2d(x, y, (x_edges, y_edges))
    return {
        "prompt_edges": x_edges.tolist(),
        "output_edges": y_edges.tolist(),
        "counts": counts.astype(int).tolist(),
    }


def curve_series(curve: HitCurve, least_blocks: int) -> Series | None:
    """Return an LRU's hit share by capacity, evenly on a logarithmic axis; None without hits."""
    if not curve.possible_tokens:
        return None
    low, high = least_blocks, max(curve.capacity_for(_NEARLY_ALL), least_blocks * 8) * 2
    capacity = np.unique(np.geomspace(low, high, _MAX_POINTS).astype(np.int64))
    return {
        "capacity_tokens": (capacity * curve.block_tokens).tolist(),
        "hit_fraction": _short(curve.fraction_at(capacity)),
    }


def reuse_series(reuse: Reuse) -> Series:
    """Return the distinct tokens used by time, and the share of reuses within a time."""
    start_ns, end_ns = reuse.table.arrival_ns[[0, -1]]
    times_ns = np.linspace(start_ns, end_ns, 121)
    blocks = np.searchsorted(reuse.first_uses_ns(), times_ns, side="right")
    return {
        "working_set": {
            "time_s": _short((times_ns - start_ns) / NS_PER_S),
            "tokens": (blocks * reuse.chains.block_tokens).tolist(),
        },
        "reuse_time": distribution("time_s", reuse.reuse_times_s()),
    }


def _decades(positive: Int64) -> float:
    return float(np.log10(positive.max() / positive.min()))


def _log_edges(positive: Int64, bins_per_decade: float) -> Float64:
    """Return edges between whole numbers, at nearly equal steps of the logarithm, around all
    values."""
    low = np.floor(np.log10(positive.min()) * bins_per_decade)
    high = np.ceil(np.log10(positive.max() + 1) * bins_per_decade)
    edges: Float64 = np.unique(np.rint(10 ** (np.arange(low, high + 1) / bins_per_decade))) - 0.5
    return edges


def _short(values: NDArray[Any]) -> list[float]:
    """Round to six digits, which is more than a plot can show."""
    return [float(f"{value:.6g}") for value in values.tolist()]
