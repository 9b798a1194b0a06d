"""Fit a calibration to what was measured in an engine core, and score it on what no fit saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from costmodels.engines.calibration import save_calibration
from scenarios.calibration.engine import fit_recordings
from scenarios.validation.validate import Validation, validate
from sim import __version__

_SERVING = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"))


def fit_measured(folder: Path, key: str, out: Path, *, machine: str, base: str) -> dict[str, Any]:
    """Fit to half of the controlled steps of a recording; write the calibration to ``out``.

    Returns the facts of `reports.calibration.fitted`: the error of every kind of held-out step and
    of every serving run, none of which is fitted to, before and after. Raises `ScenarioError` or
    `TraceError` if the recording cannot be used.
    """
    before = validate(folder, only=[key], skip=["conformance"], profile=base)
    fitted, num_steps = fit_recordings(
        [folder], only=[key], half=True, serving=False, machine=machine, base=base
    )
    digest = save_calibration(fitted, out)
    after = validate(folder, only=[key], skip=["conformance"], profile=str(out))
    return {
        "fleetcast_version": __version__,
        "profile": fitted.profile.name,
        "gpu": fitted.gpu,
        "path": str(out),
        "hash": digest,
        "fitted_to": f"{num_steps:,} steps, half of the controlled points",
        "errors": _step_errors(before, after) + _run_errors(before, after),
        "warnings": after.content["warnings"],
    }


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
