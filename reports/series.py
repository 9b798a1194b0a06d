"""The numbers behind the figures: distributions and time series, thinned to what can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.arrays import Float64

if TYPE_CHECKING:
    import pandas as pd


# A host needs milliseconds between steps; a longer gap between them is an engine with no work.
_IDLE_GAP_S = 0.05


class Windows(NamedTuple):
    """Percentiles of a value by window of time; NaN where a window is empty."""

    edges_s: Float64
    """``[windows + 1]``"""
    percentiles: Float64
    """``[levels, windows]``"""
    median_count: int
    """Values in the middle window that has any."""


class ReplicaSeries(NamedTuple):
    """One engine over time, a mean a window, each ``[windows]``."""

    replica: int
    running: Float64
    waiting: Float64
    kv_occupancy: Float64
    output_tokens_per_s: Float64
    prompt_tokens_per_s: Float64


def distribution(values: Float64, max_points: int = 240) -> tuple[Float64, Float64]:
    """Points of the empirical distribution function: values ``[k]`` and fractions ``[k]``.

    NaN is left out. More than ``max_points`` values are thinned to that many of them, spaced
    more closely towards the tail, where the questions are.
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
    """Percentiles of values by equal windows of their times, about ``per_window`` in each.

    The windows span zero to ``end_s``, above zero. Levels are fractions. NaN values are left out.
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
    """Each engine's state and token rates, averaged over the windows between the edges.

    ``usable_blocks`` is a replica's KV blocks, of which ``free_blocks`` are free. A state holds
    from its plan to the next; an engine without work runs nothing.
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
    """Spread each amount evenly over its interval; the amount a second in each window.

    Intervals are in order and do not overlap, so their running total is piecewise linear.
    """
    knots_s = np.maximum.accumulate(np.column_stack([starts_s, ends_s]).ravel())
    total = np.cumsum(amounts)
    totals = np.column_stack([np.append(0.0, total[:-1]), total]).ravel()
    at_edges = np.interp(edges_s, knots_s, totals, left=0.0)
    result: Float64 = np.diff(at_edges) / np.diff(edges_s)
    return result
