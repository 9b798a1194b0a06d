"""Error bands: rerun with the GPU, then the host, slower by as much as their times may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from costmodels.hardware.uncertainty import (
    NORMAL_90,
    host_time_error,
    repeat_error,
    step_time_error,
)
from costmodels.steps.cost import PoolCost
from scenarios.build.pools import Build
from scenarios.run.figures import Figure, run_figures
from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog
from sim.fleet.config import Fleet

Slower = Callable[[Callable[[PoolCost], PoolCost]], RunLog]
"""A function that runs again with changed step costs."""
Values = Mapping[tuple[str, str], float | None]
"""Figures of a run by metric and statistic; None where there is no number."""


def error_bands(
    values: Values, label: str, slower: Slower, values_of: Callable[[RunLog], Values]
) -> dict[tuple[str, str], float]:
    """Return the relative half-width of the 90% band of each figure that has one.

    Three errors are taken as independent: a common factor on all GPU times, a common factor on all
    host times, and the real engine's difference from itself from run to run. The first two are
    carried through by simulating twice more, so that a queue near saturation widens its own band.
    ``label`` is the weakest evidence that counts in the run.
    """
    others = [
        values_of(slower(lambda cost: cost.slower(gpu=1 + step_time_error(label)))),
        values_of(slower(_slower_host)),
    ]
    bands = {}
    for name, value in values.items():
        if not value:
            continue
        squares = repeat_error(*name) ** 2
        for other in others:
            changed = other.get(name)
            squares += 0.0 if changed is None else (changed / value - 1) ** 2
        bands[name] = NORMAL_90 * math.sqrt(squares)
    return bands


def _slower_host(cost: PoolCost) -> PoolCost:
    return cost.slower(host=1 + host_time_error(cost.profile.host_evidence.label))


def add_bands(
    summary: dict[str, Any],
    build: Build,
    measure: Callable[[RunLog], RequestMetrics],
    run: Callable[[Fleet], RunLog],
) -> None:
    """Give every figure of a summary its ``band``; None where there is none."""
    figures = summary["figures"]
    label = next((figure["evidence"] for figure in figures if figure["evidence"]), None)
    if label is None:
        return

    def values(figures: list[Figure]) -> Values:
        return {(f["name"], f["statistic"]): f["value"] for f in figures}

    def values_of(log: RunLog) -> Values:
        return values(run_figures(log, measure(log), build))

    bands = error_bands(
        values(figures), label, lambda change: run(build.with_costs(change)), values_of
    )
    for figure in figures:
        figure["band"] = bands.get((figure["name"], figure["statistic"]))
