"""Measure how well a table predicts each of its points from the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodels.tables.kinds import KINDS
from costmodels.tables.shapes import LOOKUPS
from costmodels.tables.table import LeaveOneOutError, OperatorTable
from costmodels.work import Array

_MAX_POINTS = 400
_MAX_CURVES = 60
_SEED = 0


def leave_one_out(table: OperatorTable) -> LeaveOneOutError:
    """Predict each point from the rest of its curve, and each curve from the other curves.

    Points that fall outside the range of what is left do not count: nothing is claimed there. A
    table of more than 400 points or 60 curves is judged by a fixed random sample.
    """
    lookup = LOOKUPS[table.meta.kind](table)
    rng = np.random.default_rng(_SEED)
    starts = [lookup.curve_rows(curve).start for curve in range(lookup.num_curves)]
    point_errors: list[float] = []
    for row in _sample(rng, len(table), _MAX_POINTS):
        curve = lookup.curve_rows(int(np.searchsorted(starts, row, side="right")) - 1)
        rest = np.arange(curve.start, curve.stop)
        rest = rest[rest != row]
        if rest.size:
            point_errors += _errors(table, rest, slice(row, row + 1)).tolist()
    curve_errors: list[float] = []
    if KINDS[table.meta.kind].near and lookup.num_curves > 1:
        for index in _sample(rng, lookup.num_curves, _MAX_CURVES):
            curve = lookup.curve_rows(index)
            rest = np.delete(np.arange(len(table)), curve)
            curve_errors += _errors(table, rest, curve).tolist()
    return LeaveOneOutError(
        point_median=_quantile(point_errors, 0.5),
        point_p90=_quantile(point_errors, 0.9),
        curve_median=_quantile(curve_errors, 0.5),
        curve_p90=_quantile(curve_errors, 0.9),
        num_points=len(point_errors),
    )


def _errors(table: OperatorTable, rest: NDArray[np.int64], rows: slice) -> Array:
    """|relative error| at ``rows`` of one curve, from ``rest``, where that claims to know."""
    kind = KINDS[table.meta.kind]
    same = [table.columns[name][rest] == table.columns[name][rows.start] for name in kind.same]
    if not np.all(same, axis=0).any():
        return np.empty(0)
    others = {name: column[rest] for name, column in table.columns.items()}
    lookup = LOOKUPS[table.meta.kind](replace(table, columns=others))
    curve = {name: float(table.columns[name][rows][0]) for name in (*kind.same, *kind.near)}
    axes = {name: table.columns[name][rows] for name in kind.axes}
    seconds, labels = lookup.shape_seconds(curve, axes)
    is_inside = labels != "extrapolated"
    errors: Array = np.abs(seconds / table.seconds[rows] - 1)[is_inside]
    return errors


def _sample(rng: np.random.Generator, count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    chosen: list[int] = rng.choice(count, most, replace=False).tolist()
    return chosen


def _quantile(errors: list[float], share: float) -> float | None:
    return float(np.quantile(errors, share)) if errors else None
