"""Latencies and verdicts of a finished run's requests: pure functions of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster import RunLog
from sim.percentiles import chunked_statistics
from sim.recorder import UNSET
from sim.request import Status
from sim.request_table import RequestTable
from sim.token_times import gap_chunks
from sim.window import Window, measured_window

Float = NDArray[np.float64]

LATENCIES = ("ttft", "tpot", "e2e")
"""Metrics that an SLO can set a target for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Targets in seconds; None is no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def targets(self) -> dict[str, float]:
        """The targets that are set, by metric name."""
        named = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        return {name: target for name, target in named.items() if target is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """One entry a request, float64 or bool ``[n]``; NaN where a request has no such time.

    TTFT is the first token's time less the arrival; a prefill-only request (no output) is answered
    when its prefill is. TPOT is (last - first) / (output_tokens - 1); a one-token answer has none.
    """

    status: NDArray[np.int8]
    arrival_s: Float
    queue_s: Float
    """Arrival to first scheduled."""
    ttft_s: Float
    tpot_s: Float
    e2e_s: Float
    met: dict[str, NDArray[np.bool_]]
    """Metric name -> which requests finished and met its target; only metrics with a target.
    A request without a target of its own, or without a TPOT, meets it by finishing."""
    good: NDArray[np.bool_]
    """Finished, and every SLO target met."""
    window: Window
    measured: NDArray[np.bool_]
    """Arrived in the measured window."""

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Which requests finished."""
        finished: NDArray[np.bool_] = self.status == Status.FINISHED
        return finished

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Measured requests that finished: those that latencies are taken over."""
        counted: NDArray[np.bool_] = self.finished & self.measured
        return counted


def request_metrics(log: RunLog, slo: Slo | Sequence[Slo], warmup_ns: int = 0) -> RequestMetrics:
    """Latencies and verdicts of every request of a run.

    ``slo``: for all requests, or one for each of the table's classes. Requests that arrive before
    ``warmup_ns`` are not measured.
    """
    requests = log.requests

    def seconds(name: str) -> Float:
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
    latencies = {"ttft": first_s - arrival_s, "tpot": tpot_s, "e2e": finish_s - arrival_s}
    met = {
        name: finished & ~(latencies[name] > target_s)
        for name, target_s in _targets(log.table, slo).items()
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


def _targets(table: RequestTable, slo: Slo | Sequence[Slo]) -> dict[str, Float]:
    """Metric name -> each request's target, ``[n]`` or one for all; infinite where it has none."""
    slos = [slo] if isinstance(slo, Slo) else list(slo)
    names = [name for name in LATENCIES if any(name in s.targets for s in slos)]
    by_class = {name: np.array([s.targets.get(name, np.inf) for s in slos]) for name in names}
    if table.class_index is None:
        return by_class
    return {
        name: np.broadcast_to(targets, max(len(targets), len(table.class_names)))[table.class_index]
        for name, targets in by_class.items()
    }


def itl_statistics(log: RunLog, metrics: RequestMetrics) -> tuple[dict[str, float | None], int]:
    """Inter-token latency in seconds over all gaps between tokens, and how many gaps there are."""
    in_ns, count = chunked_statistics(lambda: gap_chunks(log, metrics.measured))
    return {name: None if ns is None else ns / 1e9 for name, ns in in_ns.items()}, count
