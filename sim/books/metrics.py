"""Latencies and verdicts of a finished run's requests, and statistics over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Float64, Int64
from sim.books.token_times import gap_chunks, request_gaps_s
from sim.books.window import Window, measured_window
from sim.fleet.cluster import RunLog
from sim.recorder import UNSET
from sim.request import Status
from sim.request_table import RequestTable

LATENCIES = ("ttft", "tpot", "e2e")
"""Metrics that every request has one value of."""
TARGETS = ("ttft", "tpot", "itl", "e2e")
"""Metrics for which an SLO can set a target."""
GAPS = ("p50", "p90", "p95", "p99", "max", "longest_tenth")
"""What of a request's gaps between tokens a target can be for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Targets in seconds; None means no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    itl_s: float | None = None
    itl_of: str = "p99"
    """One of GAPS: what of a request's gaps between tokens must keep within ``itl_s``."""

    @property
    def targets(self) -> dict[str, float]:
        """Return the targets that are set, by metric name."""
        named = {name: getattr(self, f"{name}_s") for name in TARGETS}
        return {name: target for name, target in named.items() if target is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """One entry per request, float64 or bool ``[n]``; NaN if a request has no such time.

    TTFT is the first token's time less the arrival; a prefill-only request (no output) is answered
    when its prefill is. TPOT is (last - first) / (output_tokens - 1); a one-token answer has none.
    """

    status: NDArray[np.int8]
    arrival_s: Float64
    queue_s: Float64
    """Time from arrival to the first scheduled step."""
    ttft_s: Float64
    tpot_s: Float64
    e2e_s: Float64
    itl_s: Float64
    """What the SLO limits of each request's gaps between tokens; NaN for all if it limits none."""
    met: dict[str, NDArray[np.bool_]]
    """Metric name -> whether each request finished and met its target; only metrics with a
    target. A request without a target, or without a TPOT, meets it by finishing."""
    good: NDArray[np.bool_]
    """Whether each request finished and met every target."""
    window: Window
    measured: NDArray[np.bool_]
    """Whether each request arrived in the measured window."""

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Return which requests finished."""
        finished: NDArray[np.bool_] = self.status == Status.FINISHED
        return finished

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Return the measured requests that finished: latencies are taken over these."""
        counted: NDArray[np.bool_] = self.finished & self.measured
        return counted


def request_metrics(log: RunLog, slo: Slo | Sequence[Slo], warmup_ns: int = 0) -> RequestMetrics:
    """Return latencies and verdicts of every request of a run.

    ``slo``: one for all requests, or one per class of the table. Requests that arrive before
    ``warmup_ns`` are not measured.
    """
    requests = log.requests

    def seconds(name: str) -> Float64:
        ns = np.frombuffer(getattr(requests, name), np.int64)
        return np.where(ns == UNSET, np.nan, ns / 1e9)

    status = np.frombuffer(requests.status, np.int8)
    finished = status == Status.FINISHED
    arrival_s = seconds("arrival_ns")
    first_s, finish_s = seconds("first_token_ns"), seconds("finished_ns")
    finish_s = np.where(finished, finish_s, np.nan)
    gaps = np.maximum(log.table.output_tokens - 1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot_s = np.where(gaps > 0, (finish_s - first_s) / gaps, np.nan)
    slos = [slo] if isinstance(slo, Slo) else list(slo)
    latencies = {
        "ttft": first_s - arrival_s,
        "tpot": tpot_s,
        "e2e": finish_s - arrival_s,
        "itl": _limited_gaps_s(log, slos),
    }
    met = {
        name: finished & ~(latencies[name] > target_s)
        for name, target_s in _targets(log.table, slos).items()
    }
    window = measured_window(log, warmup_ns)
    arrival_ns = np.frombuffer(requests.arrival_ns, np.int64)
    return RequestMetrics(
        status=status,
        arrival_s=arrival_s,
        queue_s=seconds("admitted_ns") - arrival_s,
        **{f"{name}_s": values for name, values in latencies.items()},
        met=met,
        good=np.logical_and.reduce([finished, *met.values()]),
        window=window,
        measured=(arrival_ns >= max(window.start_ns, 0)) & (arrival_ns <= window.end_ns),
    )


def _limited_gaps_s(log: RunLog, slos: Sequence[Slo]) -> Float64:
    """Return what each request's SLO limits of its gaps, ``[n]``; NaN where it limits nothing."""
    found = np.full(len(log.table), np.nan)
    for of in {slo.itl_of for slo in slos if slo.itl_s is not None}:
        limited = [slo.itl_s is not None and slo.itl_of == of for slo in slos]
        every = np.broadcast_to(limited, max(len(slos), len(log.table.class_names)))
        mine = every[log.table.tenant]
        found = np.where(mine, request_gaps_s(log, of, mine), found)
    return found


def _targets(table: RequestTable, slos: Sequence[Slo]) -> dict[str, Float64]:
    """Return, by metric name, each request's target, ``[n]``; infinite where there is none."""
    names = [name for name in TARGETS if any(name in s.targets for s in slos)]
    by_class = {name: np.array([s.targets.get(name, np.inf) for s in slos]) for name in names}
    return {
        name: np.broadcast_to(targets, max(len(targets), len(table.class_names)))[table.tenant]
        for name, targets in by_class.items()
    }


def itl_statistics(log: RunLog, metrics: RequestMetrics) -> tuple[dict[str, float | None], int]:
    """Return statistics of inter-token latency in seconds, and the number of gaps between
    tokens."""
    in_ns, count = chunked_statistics(lambda: gap_chunks(log, metrics.measured))
    return {name: None if ns is None else ns / 1e9 for name, ns in in_ns.items()}, count


Chunks = Callable[[], Iterable[tuple[Int64, Int64]]]

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_SHARES = {name: int(name[1:]) / 100 for name in STATISTICS[1:-1]}


def statistics(values: Float64, weights: Int64 | None = None) -> dict[str, float | None]:
    """Return statistics of the values that are not NaN; None for each if there are none."""
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
    """Return statistics of weighted integers that come in chunks, and the sum of the weights.

    ``chunks()`` yields (values >= 0, weights > 0) and is called twice: first to find the narrow bin
    of each percentile, then to look at the values of those bins alone.
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


# Bins are the leading bits of the value as a float: their order is the order of the values, and
# each spans at most a thousandth of its value.
_DROPPED_BITS = 13
_NUM_BINS = (0x7F800000 >> _DROPPED_BITS) + 1


def _bin(values: Int64) -> Int64:
    bits = values.astype(np.float32).view(np.uint32) >> np.uint32(_DROPPED_BITS)
    return bits.astype(np.int64)
