"""Score the controlled steps: predicted against measured, by point and by kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.fits.engine_rows import clock_errors, point_parameters
from scenarios.validation.folder import Recording
from scenarios.validation.logs import controlled_logs
from scenarios.validation.points import Point, point_of_run, read_points
from scenarios.validation.protocol import predict_ms
from scenarios.validation.system import System
from sim.errors import ScenarioError

_HALVES = {"all": (True, False), "fit": (False,), "held_out": (True,)}


def score_points(recording: Recording, system: System) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row per point, and warnings. Raises `ScenarioError` or `TraceError` for a
    damaged file."""
    points, warnings = read_points(recording)
    heat = _heat_levels(recording, system)
    # All sequences of a controlled step have equal contexts.
    pool = system.pool
    if system.replica.speculation is None:
        pool = replace(pool, cost=system.replica.plain_cost(equal_contexts=True))
    rows, refused = [], []
    for point in points:
        try:
            level = heat.get((point.kind, *sorted(point.parameters.items())), 0.0)
            predicted_ms = predict_ms(pool, point.kind, point.parameters, level)
        except ScenarioError as error:
            refused.append(f"{point.kind} {point.parameters} is left out: {error}")
            continue
        rows.append(_row(recording.key, point, predicted_ms))
    return rows, warnings + refused


def _heat_levels(recording: Recording, system: System) -> dict[tuple[Any, ...], float]:
    """Return how far the device was throttled when each point's steps with prefill began, by the
    log.

    This is the median over repeats that began on an idle engine; if decodes ran on, the first.
    """
    levels: dict[tuple[Any, ...], float] = {}
    if system.replica.model.clips or system.replica.speculation is not None:
        return levels  # the log's sums do not price its steps; a point's own contexts do
    for log in controlled_logs(recording, system):
        clock = clock_errors(log, system.replica.cost.kernels.efficiency, system.replica.profile)
        prefill = log.columns["prefill_tokens"] > 0
        for run in dict.fromkeys(log.point.tolist()):
            point = point_of_run(run)
            if point is None:
                continue
            begun = clock.heat[(log.point == run) & prefill]
            if begun.size:
                level = begun[0] if point["kind"] in ("decode", "mixed") else np.median(begun)
                levels[point["kind"], *sorted(point_parameters(point).items())] = float(level)
    return levels


def score_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return statistics of the points' errors by key, kind (and all kinds) and half."""
    scores = []
    for key in dict.fromkeys(row["key"] for row in rows):
        of_key = [row for row in rows if row["key"] == key]
        kinds = dict.fromkeys(row["kind"] for row in of_key)
        for kind in (*kinds, "all") if len(kinds) > 1 else kinds:
            of_kind = [row for row in of_key if kind in (row["kind"], "all")]
            for half, wanted in _HALVES.items():
                chosen = [row for row in of_kind if row["held_out"] in wanted]
                if chosen:
                    scores.append({"key": key, "kind": kind, "half": half, **_scores(chosen)})
    return scores


def _row(key: str, point: Point, predicted_ms: float) -> dict[str, Any]:
    nearest_ms = min(max(predicted_ms, point.min_ms), point.max_ms)
    return {
        "key": key,
        "kind": point.kind,
        "parameters": point.parameters,
        "predicted_ms": predicted_ms,
        "measured_ms": point.measured_ms,
        "min_ms": point.min_ms,
        "max_ms": point.max_ms,
        "repeats": point.repeats,
        "error": predicted_ms / point.measured_ms - 1,
        "error_outside": predicted_ms / nearest_ms - 1,
        "within": nearest_ms == predicted_ms,
        "held_out": point.held_out,
    }


def _scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return statistics of relative errors; ``outside`` is by how much a point misses its
    repeats."""
    errors = np.array([row["error"] for row in rows])
    outside = np.abs([row["error_outside"] for row in rows])
    return {
        "count": len(rows),
        "median_abs": float(np.median(np.abs(errors))),
        "p95_abs": _p95(np.abs(errors)),
        "worst_abs": float(np.abs(errors).max()),
        "bias": float(np.median(errors)),
        "median_outside": float(np.median(outside)),
        "p95_outside": _p95(outside),
        "within": float(np.mean([row["within"] for row in rows])),
    }


def _p95(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.quantile(values, 0.95, method="inverted_cdf"))
