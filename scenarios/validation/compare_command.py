"""The work of ``fleetcast compare``, once its options are read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from calibrate.results.detect import read_measured
from calibrate.results.run import MeasuredRun
from scenarios.files.messages import nearest
from scenarios.validation.accuracy import AccuracyFigure
from scenarios.validation.compare import METRICS, compare, read_predicted
from sim.errors import ScenarioError


def run_compare(
    result: Path,
    measured: Path,
    *,
    tolerances: Sequence[str],
    measured_format: str | None,
    run: str | None,
    as_json: bool,
) -> list[str]:
    """Compare and print; return a line for every figure beyond its tolerance.

    Raises `ScenarioError` or `TraceError` if the two cannot be compared.
    """
    limits = read_tolerances(tolerances)
    predicted = read_predicted(result)
    comparison = compare(predicted, _chosen(read_measured(measured, format=measured_format), run))
    beyond = _beyond(comparison.figures, limits)
    if as_json:
        print(json.dumps(comparison.content(), indent=1, allow_nan=False))
    else:
        from reports.terminal import print_report
        from reports.validation.comparison import comparison_report

        print_report(comparison_report(comparison.content()))
    return beyond


def read_tolerances(texts: Sequence[str]) -> dict[str | None, float]:
    """Return relative tolerances by metric; None is the key for all metrics that are not named.

    Each text is ``0.1`` or ``ttft=0.1``. Raises `ScenarioError`.
    """
    limits: dict[str | None, float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if equals and name not in METRICS:
            raise ScenarioError(f"--tolerance {text}: no metric {name!r}; {nearest(name, METRICS)}")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if not 0 <= limit < math.inf:
            raise ScenarioError(
                f"--tolerance {text}: {value!r} is not a share from 0, such as 0.15"
            )
        limits[name or None] = limit
    return limits


def _chosen(runs: Sequence[MeasuredRun], name: str | None) -> MeasuredRun:
    names = ", ".join(run.name for run in runs)
    if name is None:
        if len(runs) > 1:
            raise ScenarioError(
                f"the measurements hold several runs: choose one with --run: {names}"
            )
        return runs[0]
    for run in runs:
        if run.name == name:
            return run
    raise ScenarioError(f"--run {name}: no such run; there are: {names}")


def _beyond(figures: Sequence[AccuracyFigure], limits: dict[str | None, float]) -> list[str]:
    compared = {figure.metric for figure in figures}
    for name in limits:
        if name is not None and name not in compared:
            raise ScenarioError(
                f"--tolerance {name}: was not compared; compared were {', '.join(sorted(compared))}"
            )
    lines = []
    for figure in figures:
        limit = limits.get(figure.metric, limits.get(None))
        if limit is not None and abs(figure.error) > limit:
            lines.append(
                f"beyond tolerance: {figure.metric} {figure.statistic} {figure.error:+.1%}, "
                f"allowed {limit:.1%}"
            )
    return lines
