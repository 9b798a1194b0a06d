"""The candidates of a plan as a space of choices, for a search that does not list them all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scenarios.plan.candidates import Candidate, Hardware, candidate_of, hardware, option_fields
from scenarios.plan.read import Asked
from scenarios.plan.targets import check_targets, with_slo
from scenarios.schema.plan import Range
from sim.errors import ScenarioError


class Levels(NamedTuple):
    """An axis of listed values, in an order that is not the plan file's."""

    values: tuple[Any, ...]
    is_ordered: bool
    """Whether they are numbers, so that neighbours are alike."""


Axis = Levels | Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Axes ``layout``, ``gpu`` and each option by its field."""

    asked: Asked
    by_layout: Mapping[str, Mapping[str, Hardware]]
    """Layout -> GPU -> both."""
    axes: Mapping[str, Axis]

    @property
    def candidates(self) -> int | None:
        """How many there are; None where a range has no end of values."""
        sizes = [_size(axis) for key, axis in self.axes.items() if key not in ("layout", "gpu")]
        names = {one.name for gpus in self.by_layout.values() for one in gpus.values()}
        return None if None in sizes else math.prod([len(names), *(n for n in sizes if n)])

    def candidate(self, choice: Mapping[str, Any]) -> Candidate:
        """That of a choice: of each axis the place in its levels, or a number of its range.

        It has the targets as its SLO.

        Raises ScenarioError where its values do not go together.
        """
        values = {key: _value(axis, choice[key]) for key, axis in self.axes.items()}
        gpus = self.by_layout[values.pop("layout")]
        gpu = values.pop("gpu")
        # A layout that names its GPU is on that one, whichever is chosen.
        one = candidate_of(self.asked, gpus.get(gpu) or next(iter(gpus.values())), values)
        return replace(one, scenario=with_slo(one.scenario, self.asked.plan.targets))

    def start(self) -> Candidate:
        """One of them, once every value of every axis is known to make a scenario with some.

        Raises ScenarioError for values that do not, and for targets that do not suit.
        """
        places = {key: _places(axis) for key, axis in self.axes.items()}
        ends = [{key: of_axis[end] for key, of_axis in places.items()} for end in (0, -1)]
        found = self._any_of(ends)
        check_targets(self.asked.plan.targets, found.scenario)
        for key, of_axis in places.items():
            for place in of_axis:
                self._any_of([end | {key: place} for end in ends])
        return found

    def _any_of(self, choices: Sequence[Mapping[str, Any]]) -> Candidate:
        """The first that is a scenario."""
        faults = []
        for choice in choices:
            try:
                return self.candidate(choice)
            except ScenarioError as error:
                faults.append(error)
        raise faults[0]


def space_of(asked: Asked) -> Space:
    """Of a plan. Raises ScenarioError for options that are none."""
    by_layout: dict[str, dict[str, Hardware]] = {}
    for one in hardware(asked):
        by_layout.setdefault(one.layout, {}).setdefault(one.gpu, one)
    axes: dict[str, Axis] = {
        "layout": _levels(list(by_layout)),
        "gpu": _levels(sorted({gpu for gpus in by_layout.values() for gpu in gpus})),
    }
    for key in option_fields(asked):
        given = asked.plan.options[key]
        axes[key] = given if isinstance(given, Range) else _levels(given)
    return Space(asked=asked, by_layout=by_layout, axes=axes)


def _levels(values: list[Any]) -> Levels:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return Levels(tuple(sorted(set(values))), is_ordered=True)
    by_text = {json.dumps(value, sort_keys=True, default=str): value for value in values}
    return Levels(tuple(by_text[text] for text in sorted(by_text)), is_ordered=False)


def _places(axis: Axis) -> Sequence[Any]:
    """The levels' places, or a range's ends."""
    return range(len(axis.values)) if isinstance(axis, Levels) else (axis.start, axis.to)


def _size(axis: Axis) -> int | None:
    if isinstance(axis, Levels):
        return len(axis.values)
    return int(axis.to - axis.start) + 1 if axis.whole else None


def _value(axis: Axis, chosen: Any) -> Any:
    """A field's value; of a range without end in four digits, to be read and typed again."""
    if isinstance(axis, Levels):
        return axis.values[chosen]
    if axis.whole:
        return int(chosen)
    return min(max(float(f"{chosen:.4g}"), axis.start), axis.to)
