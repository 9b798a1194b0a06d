"""A measured run: its requests if they are known, else the statistics that a tool computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sim.arrays import Float64
from sim.books.metrics import statistics

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2e")
RATES = ("request_throughput", "output_throughput")
"""Completed requests and output tokens, per second of the run; their statistic is ``value``."""

TPOT_EXCLUDES = "excludes the first token: (last - first)/(tokens - 1)"
TPOT_INCLUDES = "includes the first token: e2e/tokens, weighted by tokens"
ITL_GAPS = "every gap between tokens"
ITL_MEANS = "each request's mean gap, weighted by its gaps"
NEAREST_RANK = "nearest rank"
LINEAR = "linear interpolation between requests"
IN_BUCKETS = "linear interpolation within histogram buckets"

_SHORTEST_S = 1e-6
"""Least duration for which a run has a rate."""


class Measured(NamedTuple):
    """A statistic in seconds or per second, the number of values behind it (0: not known), and
    whether the tool computed it."""

    value: float
    over: int
    is_from_tool: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """A run under load as measured. Failed requests are counted and otherwise left out."""

    name: str
    tool: str
    conditions: dict[str, str | float] = field(default_factory=dict)
    """The tool's description of the run, for display: model, rate (requests/s), concurrency, ..."""
    latency_from: str
    """Start of TTFT and E2E: ``send`` by the client, or ``arrival`` at the server."""
    tpot_convention: str = TPOT_EXCLUDES
    itl_convention: str = ITL_GAPS
    percentiles: str = NEAREST_RANK
    """How the percentiles in ``summary`` were computed. Those of requests use nearest rank."""
    arrival_s: Float64 | None = None
    """``[completed]``, from any origin. In this and the next five arrays, NaN means that a
    request has no such value, and None that no request has."""
    prompt_tokens: Float64 | None = None
    output_tokens: Float64 | None = None
    ttft_s: Float64 | None = None
    tpot_s: Float64 | None = None
    e2e_s: Float64 | None = None
    gaps_s: Float64 | None = None
    """Gaps between tokens of all requests together."""
    summary: dict[tuple[str, str], float] = field(default_factory=dict)
    """Statistics used if there are no requests: (metric, statistic) -> seconds; RATES are per
    second, and the means of ``prompt_tokens`` and ``output_tokens`` in tokens."""
    duration_s: float | None = None
    """Seconds from the first send to the last answer."""
    completed: int | None
    """Requests that succeeded; None: the tool does not say how many."""
    failed: int = 0
    notes: tuple[str, ...] = ()
    """Notes that a reader of a comparison should know, in plain words."""

    def measured(self, metric: str) -> dict[str, Measured]:
        """Return the known statistics of one of LATENCIES or RATES, by name."""
        if self.completed == 0:
            return {}
        if metric in RATES:
            rate = self._rate(metric)
            return {} if rate is None else {"value": rate}
        values = self.gaps_s if metric == "itl" else getattr(self, f"{metric}_s")
        if values is not None and not np.isnan(values).all():
            count = int((~np.isnan(values)).sum())
            found = statistics(values)
            return {s: Measured(v, count, False) for s in STATISTICS if (v := found[s]) is not None}
        return {
            statistic: Measured(self.summary[metric, statistic], self.completed or 0, True)
            for statistic in STATISTICS
            if (metric, statistic) in self.summary
        }

    def mean_tokens(self, kind: str) -> float | None:
        """Return the mean ``prompt_tokens`` or ``output_tokens`` of the completed requests, or
        None."""
        tokens: Float64 | None = getattr(self, kind)
        if tokens is not None and not np.isnan(tokens).all():
            return float(np.nanmean(tokens))
        return self.summary.get((kind, "mean"))

    def _rate(self, metric: str) -> Measured | None:
        if (metric, "value") in self.summary:
            return Measured(self.summary[metric, "value"], self.completed or 0, True)
        if self.duration_s is None or self.duration_s < _SHORTEST_S or self.completed is None:
            return None
        amount = float(self.completed)
        if metric == "output_throughput":
            tokens = self.output_tokens
            if tokens is None or np.isnan(tokens).any():
                return None  # the rate of the known ones would be too low
            amount = float(tokens.sum())
        return Measured(amount / self.duration_s, self.completed, False)


def tpot_of(first_s: Float64, last_s: Float64, output_tokens: Float64) -> Float64:
    """Return (last - first)/(tokens - 1) in seconds; NaN for answers of at most one token."""
    has_gaps = output_tokens > 1
    gaps = np.where(has_gaps, output_tokens - 1, 1.0)
    return np.where(has_gaps, np.maximum(last_s - first_s, 0.0) / gaps, np.nan)


def with_unique_names(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs with unique names: equal names become ``name#1``, ``name#2``, ..."""
    names = [run.name for run in runs]
    seen: dict[str, int] = {}
    unique = []
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        is_shared = names.count(run.name) > 1
        unique.append(replace(run, name=f"{run.name}#{seen[run.name]}") if is_shared else run)
    return unique
