"""How much of the GPUs a run uses: arithmetic and memory bandwidth, beside the time they are busy.

A GPU is busy while a kernel runs, also one that waits for memory most of the time, so a share of
time near one says nothing of what is left. The shares of the peaks do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodels.steps.cost import StepCost
from costmodels.steps.describe import peak_seconds
from scenarios.build.pools import Build
from sim.arrays import Float64
from sim.books.window import Window, busy_gpu_ns
from sim.fleet.cluster import RunLog
from sim.shape import shape_columns
from sim.step_log import StepLog

_SAMPLES = 1024
"""Runs of steps of each pool that stand for all: in order of their tokens, the middle of each equal
part of the GPU time."""


class InUse(NamedTuple):
    """Shares of the GPUs' peaks in use over the measured window, mean over all engines."""

    arithmetic: float
    bandwidth: float


def peaks_in_use(build: Build, log: RunLog, window: Window) -> InUse | None:
    """Return the shares of peak arithmetic and memory bandwidth that a run's kernels use.

    FLOPs and bytes are those of sampled steps, each over the peak of its own format. None where
    steps hold what the operators of one rank do not describe: drafts, shared prefixes read once,
    adapters, batches that ranks or pipeline stages share.
    """
    if not window.length_s:
        return None
    used = np.zeros(2)
    first = 0
    for part, pool in zip(build.parts, log.fleet.pools, strict=True):
        steps = log.steps[first : first + pool.replicas]
        first += pool.replicas
        cost = part.replica.cost
        plain = all(one.shape_names == shape_columns(one.clip_tokens) for one in steps)
        if not plain or not isinstance(cost, StepCost) or cost.replica is not None or cost.terms:
            return None
        busy_ns = busy_gpu_ns(steps, window)
        if busy_ns:
            used += busy_ns * _mean_use(steps, window, cost)
    arithmetic, bandwidth = (used / (window.end_ns - window.start_ns) / len(log.steps)).tolist()
    return InUse(arithmetic, bandwidth)


def _mean_use(steps: list[StepLog], window: Window, cost: StepCost) -> Float64:
    """Return the mean shares of both peaks in use while a kernel runs, ``[2]``."""
    names = ("steps", "plan_ns", "gpu_ns", *steps[0].shape_names)
    columns = {name: np.concatenate([one.column(name) for one in steps]) for name in names}
    inside = (columns["plan_ns"] >= window.start_ns) & (columns["plan_ns"] <= window.end_ns)
    order = np.lexsort((columns["decode_context_tokens"], columns["prefill_tokens"]))
    ends_ns = np.where(inside, columns["gpu_ns"], 0)[order].cumsum()
    if not ends_ns[-1]:
        return np.zeros(2)
    wanted = (np.arange(_SAMPLES) + 0.5) / _SAMPLES * ends_ns[-1]
    rows = order[np.searchsorted(ends_ns, wanted)]
    chosen = {name: values[rows].astype(np.float64) for name, values in columns.items()}
    work = peak_seconds(cost.prices, cost.kernels, chosen)
    took_s = chosen["gpu_ns"] / 1e9 / chosen["steps"]
    return np.array([(work.arithmetic_s / took_s).mean(), (work.memory_s / took_s).mean()])
