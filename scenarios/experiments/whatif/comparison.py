"""Simulate a scenario and changes to it on the same requests, and compare their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from scenarios.experiments.points import Point, run_points, seeded_points, simulated
from scenarios.experiments.whatif.changes import Change, Variant, check_refusals, make_variants
from scenarios.experiments.whatif.content import check_figure, make_content
from scenarios.experiments.whatif.figures import Run, reduce_run
from scenarios.experiments.whatif.intervals import Method, choose_method
from scenarios.files.yaml_text import Places
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from sim.errors import FleetcastError


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A finished comparison, with its variants and its content as JSON."""

    variants: tuple[Variant, ...]
    """The baseline first; those that could not be run say why."""
    content: dict[str, Any]
    """What whatif.json holds, as plain values."""

    def value(self, variant: str, figure: str) -> float | None:
        """Return a figure of a variant by key, e.g. ``value("baseline", "ttft.p99")`` in seconds.

        Raises `KeyError` if no such variant ran, or if there is no such figure.
        """
        value: float | None = self._of(variant)["values"][figure]
        return value

    def delta(self, variant: str, figure: str) -> tuple[float | None, float | None]:
        """Return a figure's change against the baseline, and the half-width of its 95% interval.

        Both are in the figure's unit; None where there is no number. Raises `KeyError` like
        `value`.
        """
        delta = self._of(variant)["deltas"][figure]
        return delta["delta"], delta["half_width"]

    def _of(self, name: str) -> dict[str, Any]:
        for variant in (self.content["baseline"], *self.content["variants"]):
            if variant["name"] == name and variant["refused"] is None:
                found: dict[str, Any] = variant
                return found
        raise KeyError(f"no variant {name!r} that ran")


def what_if(
    scenario_values: Mapping[str, Any],
    changes: Sequence[Change],
    *,
    places: Places | None = None,
    replications: int | None = None,
    by: str | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Compare a scenario, given as nested values, with changes to it.

    Every change is simulated alone, and all that join together, on common random numbers.
    ``places`` says where the user gave each value, for errors. ``replications`` is the number of
    seeds, from the scenario's on; None chooses it by the size of the workload. ``by`` is the key of
    the figure that decides what is best; None chooses one. ``jobs`` and ``cluster``: see
    `scenarios.run.execution.workers.Workers`. Raises `ScenarioError` for wrong settings, and if the
    baseline or every change cannot be run.
    """
    check_figure(by)
    where: Places = {(): "scenario"} if places is None else places
    variants, why_not_together = make_variants(scenario_values, where, changes)
    check_refusals(variants)
    baseline = variants[0].scenario
    assert baseline is not None
    running = [variant for variant in variants if variant.refused is None]
    method = choose_method(baseline, len(running), replications)
    with Workers(jobs, cluster) as workers:
        runs = _run(running, method, workers, progress)
    check_refusals(variants)
    content = make_content(variants, runs, method, why_not_together=why_not_together, by=by)
    return WhatIf(variants=tuple(variants), content=content)


def _run(
    variants: Sequence[Variant], method: Method, workers: Workers, progress: Progress | None
) -> dict[str, list[Run]]:
    """Return each variant's runs by its name, one per seed; variants that fail are marked as
    refused."""
    run = partial(simulated, reduce=partial(reduce_run, with_sections=not method.independent))
    points = {variant.name: _points(variant, method) for variant in variants}
    memo: dict[str, Run] = {}
    try:
        run_points([*chain(*points.values())], run, workers, memo=memo, progress=progress)
    except FleetcastError:
        # Rare: an error that only a run finds, e.g. in a user's policy. Find out which variant has
        # it.
        for variant in variants:
            try:
                run_points(points[variant.name][:1], run, workers, memo=memo)
            except FleetcastError as error:
                variant.refuse(error)
        check_refusals(variants)
        points = {one.name: points[one.name] for one in variants if one.refused is None}
        run_points([*chain(*points.values())], run, workers, memo=memo, progress=progress)
    return {
        name: [memo[point.address] for point in of_variant] for name, of_variant in points.items()
    }


def _points(variant: Variant, method: Method) -> list[Point]:
    assert variant.scenario is not None
    return seeded_points(variant.scenario, method.seeds, {"variant": variant.name})
