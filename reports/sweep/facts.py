"""Facts from the table of a sweep: points as means over replications, and failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reports.sweep.folder import Content
from reports.sweep.words import axis_value, better_of, settings_text

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
"""Confidence level of the intervals over replications."""


class Failure(NamedTuple):
    """Points that failed with the same message."""

    message: str
    points: int
    example: str


class Effect(NamedTuple):
    """The best point among those with one value of an axis."""

    axis: str
    value: str
    best: float | None
    """The deciding figure at that point; None if no such point meets the requirement."""
    point: int | None
    kept: int
    measured: int


def axis_keys(content: Content) -> list[str]:
    """Return the axes' fields in order. Of zipped lists only the first is returned, and stands
    for all of them."""
    return [axis["key"] for axis in content["axes"] if axis["leads"]]


def every_key(content: Content) -> list[str]:
    """Return the fields of all axes."""
    return [axis["key"] for axis in content["axes"]]


def points_table(content: Content, table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point whose runs are all done, with its axes and mean figures; the
    index is ``point``."""
    done = table.groupby("point")["status"].transform(lambda of_point: (of_point == "done").all())
    rows = table[done]
    names = [name for name in content["columns"] if name in table]
    means = rows.groupby("point")[names].mean(numeric_only=True)
    keys = every_key(content)
    axes = rows.drop_duplicates("point").set_index("point")[keys]
    return axes.join(means.drop(columns=keys, errors="ignore"))


def row_of(points: pd.DataFrame, point: int) -> dict[str, Any]:
    """Return a point's axes and mean figures by column."""
    return {str(name): value for name, value in points.loc[[point]].to_dict("records")[0].items()}


def half_widths(table: pd.DataFrame, figure: str) -> pd.Series[Any]:
    """Return the half-width of Student's t interval of each point's mean over its seeds; NaN
    with one seed."""
    from scipy.special import stdtrit

    of_point = table[table["status"] == "done"].groupby("point")[figure]
    count, deviation = of_point.count(), of_point.std()
    t = count.map(lambda n: float(stdtrit(n - 1, (1 + LEVEL) / 2)) if n > 1 else math.nan)
    half: pd.Series[Any] = t * deviation / count**0.5
    return half


def kept_points(content: Content) -> list[int]:
    """Return the points that meet the requirement, best first."""
    choice = content["choice"]
    return [] if choice is None else list(choice["ranking"])


def warning_codes(table: pd.DataFrame, point: int | None = None) -> dict[str, int]:
    """Return warning codes with the number of runs (of a point) that carry each, most frequent
    first."""
    if "warnings" not in table:
        return {}
    rows = table if point is None else table[table["point"] == point]
    counts: dict[str, int] = {}
    for text in rows["warnings"].dropna():
        for code in str(text).split(", "):
            counts[code] = counts.get(code, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def nearest_points(points: pd.DataFrame) -> list[int]:
    """Return the points by attainment, highest first, for when none meets the requirement."""
    return [int(p) for p in points["attainment"].sort_values(ascending=False, kind="stable").index]


def effects(content: Content, points: pd.DataFrame) -> list[Effect]:
    """Return the best result for each value of each axis that has few values."""
    choice = content["choice"]
    if choice is None:
        return []
    ranking = [point for point in kept_points(content) if point in points.index]
    found = []
    for axis in content["axes"]:
        if not axis["leads"]:
            continue
        values = points[axis["key"]]
        distinct = list(dict.fromkeys(values.tolist()))
        if (axis["kind"] == "random" and len(distinct) > 12) or len(distinct) > 24:
            continue
        if len(distinct) < 2:
            continue
        for value in distinct:
            chosen = set(points.index[[same(v, value) for v in values]])
            best = next((point for point in ranking if point in chosen), None)
            found.append(
                Effect(
                    axis=axis["key"],
                    value=axis_value(value),
                    best=None if best is None else float(row_of(points, best)[choice["best"]]),
                    point=best,
                    kept=sum(point in chosen for point in ranking),
                    measured=len(chosen),
                )
            )
    return found


def same(one: Any, other: Any) -> bool:
    """Return whether two cells are equal; missing cells are equal to each other."""
    return axis_value(one) == axis_value(other)


def failures(content: Content, table: pd.DataFrame) -> list[Failure]:
    """Return the failures, most frequent first."""
    bad = table[table["status"] != "done"].drop_duplicates("point")
    keys = axis_keys(content)
    found = []
    for message, rows in bad.groupby("error", sort=False):
        example = settings_text(row_of(rows.set_index("point"), rows["point"].iloc[0]), keys)
        found.append(Failure(str(message), len(rows), example))
    return sorted(found, key=lambda failure: -failure.points)


def over_others(
    content: Content, points: pd.DataFrame, figure: str, axes: Sequence[str]
) -> pd.DataFrame:
    """Return one row per combination of ``axes``: the figure's best over all other axes, or its
    mean if neither direction is better.

    Only points with known axes and figure count.
    """
    known = points[[*axes, figure]].dropna(subset=[figure])
    groups = known.groupby(list(axes), sort=False, dropna=False)[figure]
    how = {"lower": "min", "higher": "max", None: "mean"}[better_of(content, figure)]
    return groups.agg(how).reset_index()
