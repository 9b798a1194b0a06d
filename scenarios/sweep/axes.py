"""Axes into the settings of points: every combination of lists, blocks and draws."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from scenarios.sweep.schema import Span, SweepFile

Settings = dict[str, Any]
"""Dotted field -> value."""


class Axis(NamedTuple):
    """One field that differs between points."""

    key: str
    kind: Literal["grid", "zipped", "random"]
    values: list[Any]
    """In the order they were given; of a random axis all that were drawn, in order of draws."""
    leads: bool = True
    """Whether it names its points: of a zipped block the first list does, the others follow it."""


def axes_of(sweep: SweepFile) -> list[Axis]:
    """Every axis, in the order of the columns."""
    found = [Axis(key, "grid", values_of(axis)) for key, axis in sweep.axes.items()]
    for block in sweep.zipped:
        first = next(iter(block))
        found += [Axis(k, "zipped", list(values), k == first) for k, values in block.items()]
    if sweep.random is not None:
        drawn = (
            Axis(key, "random", draw(axis, key, sweep.random.draws, sweep.random.seed))
            for key, axis in sweep.random.axes.items()
        )
        found += drawn
    return found


def num_combinations(sweep: SweepFile) -> int:
    """How many points there are before constraints."""
    lengths = [_length(axis) for axis in sweep.axes.values()]
    lengths += [len(next(iter(block.values()))) for block in sweep.zipped]
    lengths.append(1 if sweep.random is None else sweep.random.draws)
    return math.prod(lengths)


def combinations(sweep: SweepFile, axes: Sequence[Axis]) -> Iterator[Settings]:
    """The settings of each point: the first axis changes slowest, draws change fastest."""
    by_key = {axis.key: axis.values for axis in axes}
    groups = [[key] for key in sweep.axes] + [list(block) for block in sweep.zipped]
    if sweep.random is not None:
        groups.append(list(sweep.random.axes))
    choices = [list(zip(*(by_key[key] for key in group), strict=True)) for group in groups]
    for chosen in product(*choices):
        pairs = zip(groups, chosen, strict=True)
        yield {
            key: value for group, values in pairs for key, value in zip(group, values, strict=True)
        }


def values_of(axis: list[Any] | Span) -> list[Any]:
    """The values of a list, or of a span of equal steps."""
    if isinstance(axis, list):
        return list(axis)
    shares = np.linspace(0, 1, axis.steps or 2)
    return list(dict.fromkeys(_at(axis, float(share)) for share in shares))


def draw(axis: list[Any] | Span, key: str, draws: int, seed: int) -> list[Any]:
    """So many independent draws; the axis's own stream, so that others and more change none."""
    digest = hashlib.sha256(key.encode()).digest()
    shares = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")]).random(draws)
    if isinstance(axis, list):
        return [axis[int(share * len(axis))] for share in shares]
    return [_at(axis, float(share)) for share in shares]


def _at(span: Span, share: float) -> int | float:
    if span.scale == "log":
        value = span.start * (span.to / span.start) ** share
    else:
        value = span.start + (span.to - span.start) * share
    value = float(f"{value:.9g}")  # no 0.30000000000000004 in a file or a table
    are_whole = float(span.start).is_integer() and float(span.to).is_integer()
    if span.whole:
        return round(value)
    return int(value) if are_whole and span.steps and value.is_integer() else value


def _length(axis: list[Any] | Span) -> int:
    return len(axis) if isinstance(axis, list) else len(values_of(axis))


def as_cell(value: Any) -> Any:
    """An axis's value as a cell of a table: a number, text or truth value; else compact text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_cell(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(str(as_cell(item)) for item in value) + "]"
