"""Fit a calibration to what was measured in an engine core, and score it on what no fit saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.engines.calibration import Calibration, save_calibration
from costmodels.hardware.efficiency import FittedRange
from scenarios.build.replica import Replica
from scenarios.calibration.engine import fit_recordings
from scenarios.calibration.factors import FROM_STEPS, fit_factors
from scenarios.validation.folder import Recording, find_recordings
from scenarios.validation.points import Point, read_points
from scenarios.validation.protocol import predict_ms
from scenarios.validation.system import System, read_system
from scenarios.validation.validate import Validation, validate
from sim import __version__
from sim.arrays import Float64
from sim.errors import ScenarioError
from sim.paths import file_sha256

_SURE = 0.03
"""Relative error of a measured step that leaves a constant where it is."""
_SERVING = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"))


def fit_measured(folder: Path, key: str, out: Path, *, machine: str, base: str) -> dict[str, Any]:
    """Fit to half of the controlled steps of a recording; write the calibration to ``out``.

    Returns the facts of `reports.calibration.fitted`: the error of every kind of held-out step and
    of every serving run, none of which is fitted to, before and after. Raises `ScenarioError` or
    `TraceError` if the recording cannot be used.
    """
    before = validate(folder, only=[key], skip=["conformance"], profile=base)
    (recording,) = find_recordings(folder, [key])
    fitted, constants = _best_fit(recording, machine, base)
    digest = save_calibration(fitted, out)
    after = validate(folder, only=[key], skip=["conformance"], profile=str(out))
    return {
        "fleetcast_version": __version__,
        "profile": fitted.profile.name,
        "gpu": fitted.gpu,
        "path": str(out),
        "api_server": False,
        "hash": digest,
        "fitted_to": "half of the controlled steps",
        "constants": constants,
        "errors": _step_errors(before, after) + _run_errors(before, after),
        "warnings": after.content["warnings"],
    }


def _best_fit(
    recording: Recording, machine: str, base: str
) -> tuple[Calibration, list[dict[str, Any]]]:
    """Return the fit of single constants to step logs, or that of a few factors to points where
    that is closer to the points that both are fitted to; and the factors, if it is theirs."""
    system = read_system(recording, base)
    points = [point for point in read_points(recording)[0] if not point.held_out]
    if not points:
        raise ScenarioError(f"{recording.info_path}: no controlled steps to fit to")
    factors = fit_factors(
        [factor.spread for factor in FROM_STEPS],
        [factor.farthest for factor in FROM_STEPS],
        lambda factors: _errors(_changed(system.replica, factors), system, points) / _SURE,
    )
    by_factors = _changed(system.replica, factors)
    half_error = float(np.median(np.abs(_errors(by_factors, system, points))))
    files = sorted(recording.info_path.parent.glob(f"{recording.key}_*"))
    found = Calibration(
        profile=by_factors.profile,
        efficiency=replace(by_factors.fitted, fitted_range=_range(points)),
        gpu=system.replica.gpu.name,
        machine=machine,
        date=datetime.now(UTC).date().isoformat(),
        inputs={path.name: file_sha256(path) for path in files},
        errors={recording.key: half_error},
    )
    rows = [
        {"what": factor.name, "factor": value, "value": ""}
        for factor, value in zip(FROM_STEPS, factors.tolist(), strict=True)
    ]
    try:
        logged, _ = fit_recordings(
            [recording.info_path],
            only=[recording.key],
            half=True,
            serving=False,
            machine=machine,
            base=base,
        )
    except ScenarioError:  # too few steps, or steps that cannot be priced from their sums
        return found, rows
    by_log = replace(system.replica, profile=logged.profile, fitted=logged.efficiency)
    if float(np.median(np.abs(_errors(by_log, system, points)))) < half_error:
        return logged, []
    return found, rows


def _changed(known: Replica, factors: Float64) -> Replica:
    """Return the replica with its constants multiplied."""
    profile, efficiency = known.profile, known.fitted
    for factor, value in zip(FROM_STEPS, factors.tolist(), strict=True):
        profile, efficiency = factor.on(profile, efficiency, value)
    return replace(known, profile=profile, fitted=efficiency)


def _errors(replica: Replica, system: System, points: Sequence[Point]) -> Float64:
    """Return the logarithm of predicted over measured time, by point."""
    # All sequences of a controlled step have equal contexts.
    pool = replace(system.pool, cost=replica.plain_cost(equal_contexts=True))
    predicted_ms = [predict_ms(pool, point.kind, point.parameters) for point in points]
    errors: Float64 = np.log(predicted_ms) - np.log([point.measured_ms for point in points])
    return errors


def _range(points: Sequence[Point]) -> FittedRange:
    """Return the largest step and the longest context of the points."""
    steps = [
        sum(p.get(name, 0) for name in ("B", "D")) + p.get("N", 1) * p.get("P", 0)
        for p in (point.parameters for point in points)
    ]
    contexts = [
        max(p.get("L", 0), p.get("C", 0) + p.get("P", 0))
        for p in (point.parameters for point in points)
    ]
    return FittedRange(max(steps), max(contexts))


def _step_errors(before: Validation, after: Validation) -> list[dict[str, Any]]:
    """Return the median absolute error of the held-out points of each kind."""
    pairs = zip(_held_out(before), _held_out(after), strict=True)
    return [
        {
            "what": f"{old['kind']} steps",
            "statistic": "median",
            "count": old["count"],
            "before": old["median_abs"],
            "after": new["median_abs"],
        }
        for old, new in pairs
    ]


def _held_out(found: Validation) -> list[dict[str, Any]]:
    return [row for row in found.content["steps"] if row["half"] == "held_out"]


def _run_errors(before: Validation, after: Validation) -> list[dict[str, Any]]:
    old, new = _figures(before), _figures(after)
    rows = []
    for metric, statistic in _SERVING:
        shared = [place for place in old if place[1:] == (metric, statistic) and place in new]
        if shared:
            rows.append(
                {
                    "what": f"serving runs, {metric.upper()}",
                    "statistic": statistic,
                    "count": len(shared),
                    "before": float(np.mean([abs(old[place]) for place in shared])),
                    "after": float(np.mean([abs(new[place]) for place in shared])),
                }
            )
    return rows


def _figures(found: Validation) -> dict[tuple[str, str, str], float]:
    """Return the relative errors by run, metric and statistic."""
    return {
        (row["run"], row["metric"], row["statistic"]): row["error"]
        for row in found.content["figures"]
        if row["error"] is not None
    }
