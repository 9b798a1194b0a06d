"""Data behind the figures: distributions and time series, thinned to what a reader can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.arrays import Float64

if TYPE_CHECKING:
    import pandas as pd


# A host takes milliseconds between steps; a longer gap means that the engine had no work.
_IDLE_GAP_S = 0.05


class Windows(NamedTuple):
    """Percentiles of a value per time window; NaN for an empty window."""

    edges_s: Float64
    """Window edges, ``[windows + 1]``, in seconds."""
    percentiles: Float64
    """Percentiles, ``[levels, windows]``."""
    median_count: int
    """Median number of values over the windows that have any."""


class ReplicaSeries(NamedTuple):
    """State of one engine over time: one mean per window, each array ``[windows]``."""

    replica: int
    running: Float64
    waiting: Float64
    kv_occupancy: Float64
    output_tokens_per_s: Float64
    prompt_tokens_per_s: Float64


def distribution(values: Float64, max_points: int = 240) -> tuple[Float64, Float64]:
    """Return points of the empirical distribution function: values ``[k]`` and fractions ``[k]``.

    NaN is left out. More than ``max_points`` values are thinned to that number, spaced more closely
    towards the tail, which is the part of interest.
    """
    ordered = np.sort(values[np.isfinite(values)])
    n = len(ordered)
    if n <= max_points:
        return ordered, np.arange(1, n + 1) / max(n, 1)
    body = np.linspace(0, 0.98, max_points * 3 // 4)
    tail = 1 - np.geomspace(0.02, 1 / n, max_points // 4)
    ranks = np.unique(np.clip(np.ceil(np.concatenate([body, tail]) * n).astype(int), 1, n))
    ranks = np.append(ranks[ranks < n], n)
    return ordered[ranks - 1], ranks / n


def windows(
    times_s: Float64,
    values: Float64,
    levels: Sequence[float],
    *,
    end_s: float,
    max_windows: int = 60,
    per_window: int = 50,
) -> Windows:
    """Return percentiles of values over equal time windows with about ``per_window`` values each.

    The windows span 0 to ``end_s``, which must be positive. ``levels`` are fractions. NaN values
    are left out.
    """
    known = np.isfinite(values) & np.isfinite(times_s)
    times_s, values = times_s[known], values[known]
    count = int(np.clip(len(values) // per_window, 1, max_windows))
    edges_s = np.linspace(0.0, end_s, count + 1)
    window = np.clip(np.searchsorted(edges_s, times_s, side="right") - 1, 0, count - 1)
    percentiles = np.full((len(levels), count), np.nan)
    counts = np.bincount(window, minlength=count)
    for index in np.flatnonzero(counts):
        percentiles[:, index] = np.quantile(values[window == index], levels)
    filled = counts[counts > 0]
    return Windows(edges_s, percentiles, int(np.median(filled)) if len(filled) else 0)


def replica_series(
    steps: pd.DataFrame, edges_s: Float64, usable_blocks: float
) -> list[ReplicaSeries]:
    """Return each engine's state and token rates, averaged over the windows between the edges.

    ``usable_blocks`` is the number of KV blocks of a replica, of which ``free_blocks`` are free. A
    state lasts from its plan to the next one; an engine without work has no running requests.
    """
    found = []
    for replica, rows in steps.groupby("replica", sort=True):
        rows = rows.sort_values("plan_s", kind="stable")
        plan_s = rows["plan_s"].to_numpy(float)
        end_s = rows["gpu_end_s"].to_numpy(float)
        next_s = np.append(plan_s[1:], end_s[-1])
        held_until_s = np.where(next_s - end_s > _IDLE_GAP_S, end_s, np.maximum(next_s, plan_s))
        used = 1 - rows["free_blocks"].to_numpy(float) / max(usable_blocks, 1.0)
        num_steps = rows["steps"].to_numpy(float)
        start_s = np.minimum(np.maximum(plan_s, np.append(0.0, end_s[:-1])), end_s)

        def rate(
            name: str,
            starts: Float64 = start_s,
            ends: Float64 = end_s,
            n: Float64 = num_steps,
            rows: pd.DataFrame = rows,
        ) -> Float64:
            total = rows[name].to_numpy(float) * n
            return _mean_by_window(starts, ends, total, edges_s)

        def held(
            values: Float64, starts: Float64 = plan_s, ends: Float64 = held_until_s
        ) -> Float64:
            return _mean_by_window(starts, ends, values * (ends - starts), edges_s)

        found.append(
            ReplicaSeries(
                replica=int(str(replica)),
                running=held(rows["running"].to_numpy(float)),
                waiting=held(rows["waiting"].to_numpy(float)),
                kv_occupancy=held(used),
                output_tokens_per_s=rate("logits"),
                prompt_tokens_per_s=rate("prefill_tokens"),
            )
        )
    return found


def _mean_by_window(
    starts_s: Float64, ends_s: Float64, amounts: Float64, edges_s: Float64
) -> Float64:
    """Spread each amount evenly over its interval and return the amount per second in each window.

    The intervals must be ordered and must not overlap, so that their running total is piecewise
    linear.
    """
    knots_s = np.maximum.accumulate(np.column_stack([starts_s, ends_s]).ravel())
    total = np.cumsum(amounts)
    totals = np.column_stack([np.append(0.0, total[:-1]), total]).ravel()
    at_edges = np.interp(edges_s, knots_s, totals, left=0.0)
    result: Float64 = np.diff(at_edges) / np.diff(edges_s)
    return result
