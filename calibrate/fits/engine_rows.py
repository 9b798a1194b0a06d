"""Step logs in the form that the fits need: one clock per engine process, shapes as columns,
launch classes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrate.fits.engine_log import StepRows
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard, shard
from costmodels.models.spec import ModelSpec
from costmodels.operators.kernel_times import KernelTimes
from costmodels.steps.prices import step_seconds
from sim.arrays import Float64
from sim.errors import ScenarioError
from sim.throttle import Heat

LaunchClass = Literal["graph", "piecewise", "eager"]
CLASSES: tuple[LaunchClass, ...] = ("graph", "piecewise", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRows:
    """Consecutive steps of one engine process; arrays are ``[n]``, times in seconds."""

    name: str
    gpu: GpuSpec
    shard: RankShard
    graph_sizes: tuple[int, ...]
    async_scheduling: bool
    equal_contexts: bool
    """Whether all sequences of a step are equally long, as in a benchmark's grid."""
    sched_s: Float64
    launch_from_s: Float64
    """Time the scheduler returned, from which the host prepares and launches the step."""
    out_s: Float64
    applied_s: Float64
    running: Float64
    columns: dict[str, Float64]
    """One column per field of `StepShape`."""
    launch_class: NDArray[np.int8]
    """Index into `CLASSES`."""
    point: NDArray[np.str_]
    """Run that each step belongs to; in a benchmark, the point."""
    is_fitted: NDArray[np.bool_]
    """False for steps that are only there for the clock, and to judge the fit."""

    def __len__(self) -> int:
        return len(self.sched_s)

    @property
    def model(self) -> ModelSpec:
        """Return the served model."""
        return self.shard.model

    @property
    def num_seqs(self) -> Float64:
        """Return the number of sequences in each step."""
        seqs: Float64 = self.columns["decode_seqs"] + self.columns["prefill_seqs"]
        return seqs


def engine_rows(
    name: str,
    runs: dict[str, StepRows],
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    profile: EngineProfile,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    async_scheduling: bool = True,
    equal_contexts: bool = False,
    held_out: Collection[str] = (),
) -> EngineRows:
    """Join runs that share a clock, in order of time. The last chunk of a prompt is assumed to
    sample.

    ``held_out`` names runs that no fit may use. Raises `ScenarioError` for a model whose layers
    clip contexts, because recorded steps only have sums of whole contexts.
    """
    if model.clips:
        clips = ", ".join(map(str, model.clips))
        raise ScenarioError(
            f"{model.name}: its layers clip contexts to {clips} tokens, and recorded steps have "
            "sums of whole contexts alone: its steps cannot be priced from them"
        )
    order = sorted(runs, key=lambda run: float(runs[run].t_sched[0]))

    def joined(column: str) -> Float64:
        return np.concatenate([getattr(runs[run], column) for run in order]).astype(np.float64)

    decodes, prefills = joined("decode_seqs"), joined("prefill_reqs")
    columns = {
        "decode_seqs": decodes,
        "decode_context_tokens": joined("ctx_decode_sum"),
        "prefill_seqs": prefills,
        "prefill_tokens": joined("prefill_tokens"),
        "prefill_context_tokens": joined("ctx_prefill_start_sum"),
        "prefill_pairs": joined("attn_pairs_prefill"),
        "logits": decodes + prefills,
    }
    graph_sizes = profile.graphs_for(max_num_seqs)
    in_graph = decodes + columns["prefill_tokens"] <= (graph_sizes[-1] if graph_sizes else 0)
    launch_class = np.where(in_graph, np.where(columns["prefill_tokens"] > 0, 1, 0), 2)
    return EngineRows(
        name=name,
        gpu=gpu,
        shard=shard(model, tensor_parallel_size),
        graph_sizes=graph_sizes,
        async_scheduling=async_scheduling,
        equal_contexts=equal_contexts,
        sched_s=joined("t_sched"),
        launch_from_s=joined("t_sched_end"),
        out_s=joined("t_out"),
        applied_s=joined("t_upd_end"),
        running=joined("running"),
        columns=columns,
        launch_class=launch_class.astype(np.int8),
        point=np.concatenate([np.full(len(runs[run]), run) for run in order]),
        is_fitted=np.concatenate([np.full(len(runs[run]), run not in held_out) for run in order]),
    )


_SURE = 1.45
"""Launches rarely take longer than this multiple of their mean."""
_MARGIN_S = 0.3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockError:
    """Prediction errors of ``n`` steps; arrays are ``[n]``."""

    error: Float64
    """Predicted over measured GPU span, minus 1; NaN if the log does not show when the GPU
    finished."""
    gpu_s: Float64
    """Predicted GPU time, throttling included."""
    heat: Float64
    """Throttling level of the device when each step began (`sim.throttle.Heat`)."""


def clock_errors(rows: EngineRows, efficiency: Efficiency, profile: EngineProfile) -> ClockError:
    """Predict every step of a log from its recorded start."""
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
    known = True  # whether gpu_free_s was read from the log
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
    """Return mean launch time, delay to the first kernel and tail of each step, in seconds."""
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


def _host_ready_s(rows: EngineRows, launch_s: list[float]) -> Float64:
    """Return the time from which the host is sure to wait for a step's outputs, because all
    launches before that are done."""
    launched = rows.launch_from_s + _SURE * np.array(launch_s)
    ready = launched.copy()
    overlapped = rows.sched_s[1:] < rows.out_s[:-1]
    ready[:-1] = np.where(overlapped, launched[1:], ready[:-1])
    return ready


def point_parameters(point: Mapping[str, Any]) -> dict[str, int]:
    """Return the requested parameters: the fields of one capital letter (B, L, P, ...), and
    ``chunk``.

    All other fields of a controlled point are what was measured, and where.
    """
    chosen = {name: point[name] for name in point if _is_parameter(name)}
    return dict(sorted(chosen.items()))


def is_held_out(key: str, point: Mapping[str, Any]) -> bool:
    """Return whether a point of an info file's ``e1`` is held out of fits, to judge them.

    The half is chosen by a hash of key, kind and parameters, so it does not depend on the order,
    the number or the values of the measurements.
    """
    parameters = ",".join(f"{name}={value}" for name, value in point_parameters(point).items())
    text = f"{key}|{point['kind']}|{parameters}"
    return hashlib.sha256(text.encode()).hexdigest()[0] in "89abcdef"


def _is_parameter(name: str) -> bool:
    return name == "chunk" or (len(name) == 1 and name.isupper())
