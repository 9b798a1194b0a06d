"""Latencies, throughput and goodput of a finished run: pure functions of its columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster import RunLog
from sim.percentiles import chunked_statistics
from sim.recorder import UNSET
from sim.request import Status
from sim.token_times import gap_chunks

Float = NDArray[np.float64]


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
    good: NDArray[np.bool_]
    """Finished, and every SLO target met."""

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Which requests finished."""
        finished: NDArray[np.bool_] = self.status == Status.FINISHED
        return finished

    def meets(self, metric: str, target_s: float) -> NDArray[np.bool_]:
        """Which finished requests meet one target; no TPOT meets any."""
        value = getattr(self, f"{metric}_s")
        met: NDArray[np.bool_] = self.finished & ~(value > target_s)
        return met


def request_metrics(log: RunLog, slo: Slo) -> RequestMetrics:
    """Latencies and verdicts of every request of a run."""
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
    metrics = RequestMetrics(
        status=status,
        arrival_s=arrival_s,
        queue_s=seconds("admitted_ns") - arrival_s,
        ttft_s=first_s - arrival_s,
        tpot_s=tpot_s,
        e2e_s=finish_s - arrival_s,
        good=finished.copy(),
    )
    for metric, target_s in slo.targets.items():
        metrics.good[:] &= metrics.meets(metric, target_s)
    return metrics


def window_s(log: RunLog) -> float:
    """Length of the measured window: first arrival to the end of the run."""
    arrivals = np.frombuffer(log.requests.arrival_ns, np.int64)
    arrived = arrivals[arrivals != UNSET]
    return (log.end_ns - int(arrived.min())) / 1e9 if len(arrived) else 0.0


def itl_statistics(log: RunLog) -> tuple[dict[str, float | None], int]:
    """Inter-token latency in seconds over all gaps between tokens, and how many gaps there are."""
    in_ns, count = chunked_statistics(lambda: gap_chunks(log))
    return {name: None if ns is None else ns / 1e9 for name, ns in in_ns.items()}, count


def time_weighted(log: RunLog, column: str) -> tuple[float, int]:
    """Mean over engine-busy time and maximum of a state column of the step log.

    A run's value at its plan holds until the next run's plan.
    """
    total = weight = 0.0
    highest = 0
    for steps in log.steps:
        if not len(steps):
            continue
        values, plan_ns = steps.column(column), steps.column("plan_ns")
        end_ns = np.minimum(
            np.append(plan_ns[1:], log.end_ns), np.maximum(steps.column("gpu_end_ns"), plan_ns)
        )
        held_ns = np.maximum(end_ns - plan_ns, 0).astype(np.float64)
        total += float((values * held_ns).sum())
        weight += float(held_ns.sum())
        highest = max(highest, int(values.max()))
    return (total / weight if weight else 0.0), highest


def gpu_busy(log: RunLog) -> float:
    """Share of the measured window in which the GPUs ran kernels, mean over the replicas."""
    window_ns = window_s(log) * 1e9
    if not window_ns:
        return 0.0
    busy_ns = sum(int(steps.column("gpu_ns").sum()) for steps in log.steps if len(steps))
    return busy_ns / window_ns / len(log.steps)
