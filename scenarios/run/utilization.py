"""How much of the GPUs a run uses: arithmetic and memory bandwidth, beside the time they are busy.

A GPU is busy while a kernel runs, also one that waits for memory most of the time, so a share of
time near one says nothing of what is left. The shares of the peaks do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware.gpus import GpuSpec
from costmodels.steps.cost import StepCost
from costmodels.steps.describe import peak_seconds
from scenarios.build.pools import Build
from sim.arrays import Float64
from sim.books.window import Window, busy_gpu_ns
from sim.fleet.cluster import RunLog
from sim.shape import SUMS, StepShape, shape_columns
from sim.step_log import StepLog

_SAMPLES = 256
"""Steps of each pool that stand for all: in order of their tokens, each the middle of an equal part
of the GPU time."""
_FEW = 8
"""Of these, where ranks or stages share a batch, so that steps are described one by one."""


class InUse(NamedTuple):
    """Shares of the GPUs' peaks in use over the measured window, mean over all engines."""

    arithmetic: float
    bandwidth: float


def peaks_in_use(build: Build, log: RunLog, window: Window) -> InUse | None:
    """Return the shares of peak arithmetic and memory bandwidth that a run's kernels use.

    FLOPs and bytes are those of sampled steps, each over the peak of its own format. None where
    steps hold what the samples do not describe: drafts, shared prefixes read once, adapters.
    """
    if not window.length_s:
        return None
    used = np.zeros(2)
    first = 0
    for part, pool in zip(build.parts, log.fleet.pools, strict=True):
        steps = log.steps[first : first + pool.replicas]
        first += pool.replicas
        if any(one.shape_names != shape_columns(one.clip_tokens) for one in steps):
            return None
        busy_ns = busy_gpu_ns(steps, window)
        if busy_ns:
            cost = part.replica.plain_cost()
            used += busy_ns * _mean_use(steps, window, cost, part.replica.gpu)
    arithmetic, bandwidth = (used / (window.end_ns - window.start_ns) / len(log.steps)).tolist()
    return InUse(arithmetic, bandwidth)


def _mean_use(steps: list[StepLog], window: Window, cost: StepCost, gpu: GpuSpec) -> Float64:
    """Return the mean shares of both peaks in use while a kernel runs, ``[2]``."""
    busy_ns = [np.where(_inside(one, window), one.column("gpu_ns"), 0) for one in steps]
    tokens, context = (
        np.concatenate([one.column(name) for one in steps])
        for name in ("prefill_tokens", "decode_context_tokens")
    )
    order = np.lexsort((context, tokens))
    ends_ns = np.concatenate(busy_ns)[order].cumsum()
    if not ends_ns[-1]:
        return np.zeros(2)
    wanted = (np.arange(_SAMPLES) + 0.5) / _SAMPLES * ends_ns[-1]
    rows = order[np.searchsorted(ends_ns, wanted)]
    columns = {
        name: np.concatenate([one.column(name) for one in steps])[rows].astype(np.float64)
        for name in steps[0].shape_names
    }
    if cost.replica is None and not cost.terms:
        arithmetic_s, memory_s, gpu_s = peak_seconds(cost.prices, cost.kernels, columns)
        return np.array([(arithmetic_s / gpu_s).mean(), (memory_s / gpu_s).mean()])
    every = zip(*(columns[name].astype(int).tolist() for name in columns), strict=True)
    shapes = [StepShape(*of[: len(SUMS)])._replace(clipped=of[len(SUMS) :]) for of in every]
    uses = np.array([_use(shape, cost, gpu) for shape in shapes[:: _SAMPLES // _FEW]])
    return np.array(uses.mean(axis=0))


def _inside(steps: StepLog, window: Window) -> NDArray[np.bool_]:
    plan_ns = steps.column("plan_ns")
    return (plan_ns >= window.start_ns) & (plan_ns <= window.end_ns)


def _use(shape: StepShape, cost: StepCost, gpu: GpuSpec) -> tuple[float, float]:
    rows = cost.describe(shape)
    seconds = sum(row.seconds for row in rows)
    if not seconds:
        return 0.0, 0.0
    arithmetic = sum(row.flops / (getattr(gpu, row.peak) or gpu.bf16_flop_per_s) for row in rows)
    moved = sum(row.weight_bytes + row.state_bytes + row.activation_bytes for row in rows)
    return arithmetic / seconds, moved / gpu.hbm_bytes_per_s / seconds
