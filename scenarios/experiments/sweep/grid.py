"""The grid of a sweep: every combination of its axes, and the points of each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scenarios.experiments.points import Point, seeded_points
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
from scenarios.files.load import apply_setting, validate
from scenarios.files.paths import relocated
from scenarios.files.yaml_text import Places
from scenarios.schema import Scenario
from scenarios.schema.sweep import MOST_POINTS
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One choice of every axis, and its points: one per replication."""

    index: int
    cells: dict[str, Any]
    """Axis values as cells of a table."""
    refused: str | None = None
    """Why the schema refuses the combination; None if it does not."""
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All combinations that constraints leave."""

    axes: list[Axis]
    combinations: list[Combination]
    left_out: dict[str, int] = field(default_factory=dict)
    """Constraint -> combinations that it was the first to leave out."""

    @property
    def points(self) -> list[Point]:
        """Every point, combination by combination."""
        return [point for one in self.combinations for point in one.points]

    @property
    def refused(self) -> int:
        """The number of combinations that the schema refuses."""
        return sum(one.refused is not None for one in self.combinations)


def make_grid(sweep: Sweep) -> Grid:
    """Expand the axes, drop what constraints exclude, and validate every combination's scenario.

    A combination that the schema refuses is kept with its reason. Raises `ScenarioError` if every
    one is refused, if none is left, or if a constraint cannot be evaluated.
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
    every = [_combination(sweep, index, settings) for index, settings in enumerate(chosen)]
    if all(one.refused is not None for one in every):
        raise ScenarioError(f"no point can be run; the first: {every[0].refused}")
    return Grid(axes=axes, combinations=every, left_out=left_out)


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


def _combination(sweep: Sweep, index: int, settings: Settings) -> Combination:
    cells = {key: as_cell(value) for key, value in settings.items()}
    try:
        scenario = scenario_of(sweep, settings)
    except ScenarioError as error:
        # an unknown field is a mistake in the sweep, not in one combination
        if "unknown key" in str(error):
            raise
        return Combination(index=index, cells=cells, refused=str(error))
    replications = sweep.file.replications or scenario.replications
    seeds = range(scenario.seed, scenario.seed + replications)
    points = seeded_points(scenario, seeds, {"point": index, **cells})
    return Combination(index=index, cells=cells, points=tuple(points))


def scenario_of(sweep: Sweep, settings: Mapping[str, Any]) -> Scenario:
    """Return a combination's scenario, with absolute paths, because other machines may run it."""
    values, places = copy.deepcopy(sweep.base), dict(sweep.base_places)
    for key, value in settings.items():
        where = f"{sweep.place_of_axis(key)} ({key}: {as_cell(value)})"
        apply_setting(values, places, key, copy.deepcopy(value), where)
    if isinstance(values.get("model"), str):
        relocated(values, None)
    return validate(values, _with_axes(places))


def _with_axes(places: Places) -> Places:
    return places if () in places else {(): "scenario", **places}
