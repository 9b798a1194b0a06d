"""The engine's GPU clock beside a step log: where each step's outputs should have been read.

The host's clock is taken from the log (when each step was scheduled), the GPU's is predicted: a
step starts when the GPU is free and its first kernel has arrived, and its outputs are read when it
has ended and the host has launched the step after it. Wherever the log shows the host waiting for
the GPU, the GPU's clock is set to the log, so that one error is not counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.engine_rows import EngineRows, Float
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.operators.kernel_times import KernelTimes
from costmodels.steps.step_split import step_seconds
from sim.engine.throttle import Heat

_SURE = 1.45
"""A launch hardly ever takes longer than this many times its mean."""
_MARGIN_S = 0.3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockError:
    """Prediction errors of ``n`` steps; arrays are ``[n]``."""

    error: Float
    """Predicted over measured GPU span, less 1; NaN where the log does not show the GPU's end."""
    gpu_s: Float
    """Predicted GPU time, throttling included."""
    heat: Float
    """How far the device was throttled when each step began (`sim.engine.throttle.Heat`)."""


def clock_errors(rows: EngineRows, efficiency: Efficiency, profile: EngineProfile) -> ClockError:
    """Predict every step of a log from its own start on."""
    kernels = KernelTimes(shard=rows.shard, gpu=rows.gpu, efficiency=efficiency)
    priced = step_seconds(
        kernels, rows.graph_sizes, rows.columns, equal_contexts=rows.equal_contexts
    )
    launch_s, delay_s, tail_s = launch_terms(rows, profile)
    heat = Heat(efficiency.throttle)
    errors, spans, levels = np.full(len(rows), np.nan), np.empty(len(rows)), np.zeros(len(rows))
    ready_s = _host_ready_s(rows, launch_s).tolist()
    out_s, from_s = rows.out_s.tolist(), rows.launch_from_s.tolist()
    gpu_free_s = 0.0
    known = True  # that the GPU was free at gpu_free_s is read from the log
    for n, (gpu_s, compute_s) in enumerate(
        zip(priced.gpu_s.tolist(), priced.compute_s.tolist(), strict=True)
    ):
        arrival_s = from_s[n] + delay_s[n]
        start_s = max(gpu_free_s, arrival_s)
        if compute_s:
            levels[n] = heat.level_at(int(start_s * 1e9))
            stretched_ns = heat.stretch_ns(
                int(start_s * 1e9), int(gpu_s * 1e9), int(compute_s * 1e9)
            )
            gpu_s += stretched_ns / 1e9
        spans[n] = gpu_s
        end_s = start_s + gpu_s
        launch_bound = from_s[n] + _SURE * launch_s[n] + tail_s[n] > out_s[n]
        waited = out_s[n] > ready_s[n] + _MARGIN_S
        if waited and not launch_bound and (known or start_s > arrival_s):
            errors[n] = (
                end_s / out_s[n] - 1 if start_s >= out_s[n] else (gpu_s / (out_s[n] - start_s) - 1)
            )
        gpu_free_s = out_s[n] if waited else min(end_s, out_s[n])
        known = waited
    return ClockError(error=errors, gpu_s=spans, heat=levels)


def launch_terms(rows: EngineRows, profile: EngineProfile) -> tuple[list[float], ...]:
    """Mean launch time, delay to the first kernel and tail of each step, in seconds."""
    model = rows.model
    by_class = (
        profile.full_graph_launch_s,
        profile.piecewise_launch_s(model),
        profile.eager_launch_s(model),
    )
    kinds = rows.launch_class.tolist()
    prefill = (rows.columns["prefill_tokens"] > 0).tolist()
    return (
        [by_class[kind] for kind in kinds],
        [profile.full_graph_delay_s if kind == 0 else profile.other_delay_s for kind in kinds],
        [profile.prefill_tail_s if has else 0.0 for has in prefill],
    )


def _host_ready_s(rows: EngineRows, launch_s: list[float]) -> Float:
    """From when the host surely waits for a step's outputs: it has launched what comes first."""
    launched = rows.launch_from_s + _SURE * np.array(launch_s)
    ready = launched.copy()
    overlapped = rows.sched_s[1:] < rows.out_s[:-1]
    ready[:-1] = np.where(overlapped, launched[1:], ready[:-1])
    return ready
