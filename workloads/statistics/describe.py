"""What a workload looks like, in the numbers trace papers report."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.request_table import RequestTable
from workloads.statistics.arrival_stats import arrival_statistics
from workloads.statistics.reuse_stats import Reuse, reuse_statistics
from workloads.statistics.session_stats import session_statistics

PERCENTILES = (50, 90, 99)


def describe(table: RequestTable) -> dict[str, float]:
    """Statistics of all requests of the table; NaN where there are too few to have one.

    The parts say what theirs mean: `arrival_statistics`, `length_statistics`, `correlation`, and,
    where the table has prefix chains or sessions, `reuse_statistics` and `session_statistics`.
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
    """Mean, percentiles and maximum of token counts."""
    if not len(tokens):
        return dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES), "max"), math.nan)
    percentiles = np.percentile(tokens, PERCENTILES)
    return {
        "mean": float(tokens.mean()),
        **{f"p{p}": float(v) for p, v in zip(PERCENTILES, percentiles, strict=True)},
        "max": int(tokens.max()),
    }


def correlation(x: Int64, y: Int64) -> dict[str, float]:
    """Pearson's and Spearman's correlation; NaN where one of the two does not vary."""
    return {"pearson": _pearson(x, y), "spearman": _pearson(_ranks(x), _ranks(y))}


def _named(prefix: str, statistics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in statistics.items()}


def _pearson(x: NDArray[np.float64] | Int64, y: NDArray[np.float64] | Int64) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: Int64) -> NDArray[np.float64]:
    """Ranks from 0; equal values share their mean rank."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[index]
    return ranks
