"""The measured window of a run, and what the engines did in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Int64
from sim.fleet.cluster import RunLog
from sim.recorder import UNSET
from sim.step_log import StepLog


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that arrive in ``[start_ns, end_ns]`` are measured; rates are over this span."""

    start_ns: int
    end_ns: int

    @property
    def length_s(self) -> float:
        """Length of the window in seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    def overlap_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each interval lies in the window, int64."""
        clipped = np.minimum(end_ns, self.end_ns) - np.maximum(start_ns, self.start_ns)
        overlap: Int64 = np.maximum(clipped, 0)
        return overlap


def measured_window(log: RunLog, warmup_ns: int = 0) -> Window:
    """Return the measured window of a run.

    Without a warm-up it reaches from the first arrival to the end of the run, as load tools count.
    With one, it reaches from the warm-up's end to the last arrival: the filling and draining of the
    system are excluded, so figures describe the steady state.
    """
    arrivals = np.frombuffer(log.requests.arrival_ns, np.int64)
    arrived = arrivals[arrivals != UNSET]
    if not len(arrived):
        return Window(0, 0)
    if not warmup_ns:
        return Window(int(arrived.min()), log.end_ns)
    return Window(warmup_ns, max(warmup_ns, int(arrived.max())))


def time_weighted(log: RunLog, column: str, window: Window) -> tuple[float, int, int]:
    """Return the mean over engine-busy time, the minimum and the maximum of a state column of the
    step log.

    A run's value at its plan holds until the next run's plan. Zeros if no engine had work.
    """
    mean, least, most = _weighted(log, column, window, [1] * len(log.steps))
    return mean, int(least), int(most)


def kv_occupancy(log: RunLog, window: Window) -> tuple[float, float]:
    """Return the mean (over engine-busy time) and the maximum of the share of KV blocks in use.

    Engines that never had work do not count.
    """
    usable = [pool.engine.replica_blocks - 1 for pool in log.fleet.pool_of]
    mean, least, _ = _weighted(log, "free_blocks", window, usable)
    return 1 - mean, 1 - least


def _weighted(
    log: RunLog, column: str, window: Window, units: Sequence[int]
) -> tuple[float, float, float]:
    """Return `time_weighted` with each replica's values in units of its own."""
    total = weight = 0.0
    extremes: list[float] = []
    for steps, unit in zip(log.steps, units, strict=True):
        if not len(steps):
            continue
        values, plan_ns = steps.column(column) / unit, steps.column("plan_ns")
        end_ns = np.minimum(
            np.append(plan_ns[1:], log.end_ns), np.maximum(steps.column("gpu_end_ns"), plan_ns)
        )
        held_ns = window.overlap_ns(plan_ns, end_ns).astype(np.float64)
        total += float((values * held_ns).sum())
        weight += float(held_ns.sum())
        planned = (plan_ns >= window.start_ns) & (plan_ns <= window.end_ns)
        seen = values[planned | (held_ns > 0)]
        extremes += [float(seen.min()), float(seen.max())] if len(seen) else []
    if not extremes:
        return 0.0, 0.0, 0.0
    return (total / weight if weight else 0.0), min(extremes), max(extremes)


def gpu_busy(log: RunLog, window: Window) -> float:
    """Return the share of the window in which the GPUs ran kernels, averaged over the replicas.

    A run of steps cut by the window counts with the part of its time that lies inside.
    """
    length_ns = window.end_ns - window.start_ns
    if not length_ns:
        return 0.0
    return busy_gpu_ns(log.steps, window) / length_ns / len(log.steps)


def busy_gpu_ns(logs: Sequence[StepLog], window: Window) -> float:
    """Return the time in the window in which GPUs ran kernels, summed over the engines."""
    return sum(_busy_ns(steps, window) for steps in logs if len(steps))


def _busy_ns(steps: StepLog, window: Window) -> float:
    gpu_ns, end_ns = steps.column("gpu_ns"), steps.column("gpu_end_ns")
    free_ns = np.concatenate([np.zeros(1, np.int64), end_ns[:-1]])
    start_ns = np.minimum(np.maximum(free_ns, steps.column("plan_ns")), end_ns)
    length_ns = np.maximum(end_ns - start_ns, 1)
    return float((gpu_ns * (window.overlap_ns(start_ns, end_ns) / length_ns)).sum())
