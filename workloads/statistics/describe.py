"""Statistics of a whole workload: arrivals, lengths, sessions and prefix reuse."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.request_table import RequestTable
from workloads.statistics.arrival_stats import arrival_statistics
from workloads.statistics.reuse_stats import Reuse, reuse_statistics

PERCENTILES = (50, 90, 99)


def session_statistics(
    table: RequestTable, *, has_times: bool | None = None, has_thinks: bool | None = None
) -> dict[str, float]:
    """Compute statistics of sessions; empty if the table has none.

    ``turns`` are a session's requests. ``turn_gap_s`` is from one request of a session to its next;
    it needs the arrivals of all (``has_times``, by default in an open loop). ``think_time_s`` is
    from an answer to the request that waits for it (``has_thinks``, by default if requests wait).
    Rows of no session (-1) are left out.
    """
    if table.session is None:
        return {}
    rows = np.flatnonzero(table.session >= 0)
    _, session, turns = np.unique(table.session[rows], return_inverse=True, return_counts=True)
    if not len(turns):
        return {}
    found = {
        "num_sessions": len(turns),
        "turns_mean": float(turns.mean()),
        **{f"turns_p{p}": float(np.percentile(turns, p)) for p in PERCENTILES},
        "turns_max": int(turns.max()),
        "single_turn_fraction": float(np.mean(turns == 1)),
    }
    if table.is_open_loop if has_times is None else has_times:
        order = np.lexsort((table.arrival_ns[rows], session))
        is_next = np.diff(session[order]) == 0
        gaps_ns = np.diff(table.arrival_ns[rows][order])[is_next]
        found |= _percentiles_s("turn_gap_s", gaps_ns)
    if table.after is not None and table.think_ns is not None and has_thinks is not False:
        found |= _percentiles_s("think_time_s", table.think_ns[table.after >= 0])
    return found


def _percentiles_s(name: str, times_ns: Int64) -> dict[str, float]:
    if not len(times_ns):
        return {f"{name}_p{p}": math.nan for p in PERCENTILES}
    found = np.percentile(times_ns, PERCENTILES) / NS_PER_S
    return {f"{name}_p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}


PERCENTILES = (50, 90, 99)


def describe(table: RequestTable) -> dict[str, float]:
    """Compute statistics of all requests of the table; NaN if there are too few for one.

    For their meaning see `arrival_statistics`, `length_statistics`, `correlation`, and, if the
    table has prefix chains or sessions, `reuse_statistics` and `session_statistics`.
    """
    summary = {
        **arrival_statistics(table.arrival_ns),
        **_named("prompt_tokens", length_statistics(table.prompt_tokens)),
        **_named("output_tokens", length_statistics(table.output_tokens)),
        **correlation(table.prompt_tokens, table.output_tokens),
    }
    if table.chains is not None and len(table):
        reuse = Reuse(table, table.chains)
        summary |= reuse_statistics(reuse, reuse.curve())
    return summary | session_statistics(table)


def length_statistics(tokens: Int64) -> dict[str, float]:
    """Compute mean, percentiles and maximum of token counts."""
    if not len(tokens):
        return dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES), "max"), math.nan)
    percentiles = np.percentile(tokens, PERCENTILES)
    return {
        "mean": float(tokens.mean()),
        **{f"p{p}": float(v) for p, v in zip(PERCENTILES, percentiles, strict=True)},
        "max": int(tokens.max()),
    }


def correlation(x: Int64, y: Int64) -> dict[str, float]:
    """Compute Pearson's and Spearman's correlation; NaN if one of the two does not vary."""
    return {"pearson": _pearson(x, y), "spearman": _pearson(_ranks(x), _ranks(y))}


def _named(prefix: str, statistics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in statistics.items()}


def _pearson(x: NDArray[np.float64] | Int64, y: NDArray[np.float64] | Int64) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: Int64) -> NDArray[np.float64]:
    """Return ranks from 0; equal values share their mean rank."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[index]
    return ranks
