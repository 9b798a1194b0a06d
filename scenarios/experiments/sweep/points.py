"""The points of a sweep, and the runs of each: a scenario and the address of its result."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scenarios.experiments.sweep.axes import (
    Axis,
    Expression,
    Settings,
    as_cell,
    axes_of,
    combinations,
    num_combinations,
)
from scenarios.experiments.sweep.sweep_file import Sweep
from scenarios.files.identity import result_address
from scenarios.files.load import apply_setting, validate
from scenarios.files.paths import relocated
from scenarios.files.yaml_text import Places
from scenarios.run.replications import with_seed
from scenarios.schema import Scenario
from scenarios.schema.sweep import MOST_POINTS
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation of a point."""

    point: int
    seed: int
    scenario: Scenario
    key: str
    """Address of the run's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One choice of every axis."""

    index: int
    settings: Settings
    refused: str | None = None
    """Why the schema refuses the point; None if it does not."""
    runs: tuple[Run, ...] = ()

    @property
    def cells(self) -> dict[str, Any]:
        """Axis values as cells of a table."""
        return {key: as_cell(value) for key, value in self.settings.items()}


@dataclass(frozen=True, kw_only=True)
class Points:
    """All points that constraints leave."""

    axes: list[Axis]
    points: list[Point]
    left_out: dict[str, int] = field(default_factory=dict)
    """Constraint -> points that it was the first to leave out."""

    @property
    def runs(self) -> list[Run]:
        """Every run, point by point."""
        return [run for point in self.points for run in point.runs]


def make_points(sweep: Sweep) -> Points:
    """Expand the axes, drop what constraints exclude, and validate every point's scenario.

    A point that the schema refuses is kept with its reason. Raises `ScenarioError` if every point
    is refused, if none is left, or if a constraint cannot be evaluated.
    """
    count = num_combinations(sweep.file)
    if count > MOST_POINTS:
        raise ScenarioError(
            f"{sweep.name}: {count:,} combinations; at most {MOST_POINTS:,}: shorten axes, zip "
            "some, or draw at random"
        )
    axes = axes_of(sweep.file)
    left_out, chosen = _constrained(sweep, axes)
    if not chosen:
        raise ScenarioError(f"{sweep.name}: constraints leave none of {count:,} combinations")
    points = [_point(sweep, index, settings) for index, settings in enumerate(chosen)]
    if all(point.refused is not None for point in points):
        raise ScenarioError(f"no point can be run; the first: {points[0].refused}")
    return Points(axes=axes, points=points, left_out=left_out)


def _constrained(sweep: Sweep, axes: list[Axis]) -> tuple[dict[str, int], list[Settings]]:
    constraints = [
        Expression(text, f"{sweep.place('constraints', n)}: constraint {text!r}")
        for n, text in enumerate(sweep.file.constraints)
    ]
    for constraint in constraints:
        constraint.check([axis.key for axis in axes])
    left_out = dict.fromkeys(sweep.file.constraints, 0)
    chosen = []
    for settings in combinations(sweep.file, axes):
        broken = next((one for one in constraints if not one.value(settings)), None)
        if broken is None:
            chosen.append(settings)
        else:
            left_out[broken.text] += 1
    return left_out, chosen


def _point(sweep: Sweep, index: int, settings: Settings) -> Point:
    try:
        scenario = scenario_of(sweep, settings)
    except ScenarioError as error:
        # an unknown field is a mistake in the sweep, not in one point
        if "unknown key" in str(error):
            raise
        return Point(index=index, settings=settings, refused=str(error))
    replications = sweep.file.replications or scenario.replications
    runs = []
    for seed in range(scenario.seed, scenario.seed + replications):
        of_seed = with_seed(scenario, seed)
        runs.append(Run(point=index, seed=seed, scenario=of_seed, key=result_address(of_seed)))
    return Point(index=index, settings=settings, runs=tuple(runs))


def scenario_of(sweep: Sweep, settings: Mapping[str, Any]) -> Scenario:
    """Return a point's scenario, with absolute file paths, because other machines may run it."""
    values, places = copy.deepcopy(sweep.base), dict(sweep.base_places)
    for key, value in settings.items():
        where = f"{sweep.place_of_axis(key)} ({key}: {as_cell(value)})"
        apply_setting(values, places, key, copy.deepcopy(value), where)
    if isinstance(values.get("model"), str):
        relocated(values, None)
    return validate(values, _with_axes(places)).model_copy(update={"bands": False})


def _with_axes(places: Places) -> Places:
    return places if () in places else {(): "scenario", **places}
