"""Seconds of any shape from an operator table, each with how well it is known.

What is looked up is seconds over the roofline's bound: it varies slowly, and held beyond the last
point it lets time grow as the roofline does. Between the points of a curve see `interpolate`;
curves that were not measured are read off their nearest neighbours in log shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodels.operator_tables.ideal import ideal_seconds
from costmodels.operator_tables.interpolate import (
    EXTRAPOLATED,
    FITTED,
    MEASURED,
    RaggedGrid,
    nearest,
)
from costmodels.operator_tables.kinds import KINDS
from costmodels.operator_tables.table import Array, OperatorTable
from sim.errors import ScenarioError

# By the codes of `interpolate`: the shape itself is in the table, inside its range, outside it.
LABELS = np.array(["measured", "fitted", "extrapolated"])

# By leave-one-out over AIConfigurator's GEMM tables: 1 neighbour 6.6% median, 4 neighbours 3.8%.
# Of kinds with one `near` column, the two around it.
_NUM_NEIGHBOURS = 4

Labels = NDArray[np.str_]


def label_codes(labels: Labels) -> NDArray[np.int64]:
    """The places in `LABELS`, larger for weaker: ``[n]``."""
    codes: NDArray[np.int64] = (labels[:, None] == LABELS).argmax(axis=1)
    return codes


class Lookup:
    """Interpolates one table. Subclasses name the shape of one kind."""

    def __init__(self, table: OperatorTable) -> None:
        """Raises `ScenarioError` if the table's GPU is unknown or lacks a peak the table needs."""
        self.table = table
        self.gpu = table.device
        self._kind = KINDS[table.meta.kind]
        self._over_bound = table.seconds / self._ideal(table.columns)
        keys = self._curve_keys(table.columns)
        # Rows are sorted by shape: a curve is a run of rows.
        is_first = np.ones(len(table), dtype=np.bool_)
        is_first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        self._starts = np.append(np.flatnonzero(is_first), len(table))
        self._keys = keys[is_first]
        self._grid = lru_cache(maxsize=None)(self._build_grid)

    @property
    def num_curves(self) -> int:
        """Curves of the table."""
        return len(self._keys)

    def curve_rows(self, curve: int) -> slice:
        """The table's rows of one curve."""
        return slice(int(self._starts[curve]), int(self._starts[curve + 1]))

    def shape_seconds(
        self,
        curve: Mapping[str, float],
        axes: Mapping[str, Array],
        ideal_s: Array | None = None,
    ) -> tuple[Array, Labels]:
        """Seconds and label of each shape: ``[n]`` both; 0 where there is no work.

        ``curve`` has one number for each of the kind's ``same`` and ``near`` columns, ``axes`` one
        array ``[n]`` for each of its ``axes``. ``ideal_s`` replaces the roofline's bound of
        these shapes where the true batch is only equivalent to them. Raises `ScenarioError` if no
        measured curve shares the ``same`` columns.
        """
        has_work = np.all([axes[a] > 0 for a in self._kind.axes if a != "prefix_tokens"], axis=0)
        axes = {name: np.where(has_work, axis, 1.0) for name, axis in axes.items()}
        curves, weights, curve_code = self._curves_near(curve)
        log_over = np.zeros(len(has_work))
        codes = np.full(len(has_work), curve_code)
        for index, weight in zip(curves, weights, strict=True):
            over, curve_codes = self._grid(int(index))(self._coordinates(axes))
            log_over += weight * np.log(over)
            codes = np.maximum(codes, curve_codes)
        if ideal_s is None:
            ideal_s = self._ideal({**columns_of(curve, len(has_work)), **axes})
        seconds = ideal_s * np.exp(log_over)
        # What is smaller than anything measured takes no less than the shortest time: a kernel's
        # fixed part.
        floor_s = min(self.table.seconds[self.curve_rows(int(one))].min() for one in curves)
        seconds = np.where(codes == EXTRAPOLATED, np.maximum(seconds, floor_s), seconds)
        seconds = np.where(has_work, seconds, 0.0)
        return seconds, LABELS[np.where(has_work, codes, MEASURED)]

    def lack(self, same: Mapping[str, float]) -> str:
        """Why the table has no curve with these ``same`` columns; empty where it has one."""
        names = self._kind.same
        key = np.array([same[name] for name in names], np.float64)
        known = self._keys[:, : len(names)]
        if (known == key).all(axis=1).any():
            return ""
        choices = "; ".join(_described(names, row) for row in np.unique(known, axis=0).tolist())
        return (
            f"the {self.table.meta.gpu} {self.table.meta.kind} table has nothing at "
            f"{_described(names, key.tolist())}; it has {choices}"
        )

    def columns_seconds(self, columns: Mapping[str, Array]) -> tuple[Array, Labels]:
        """The same for shapes of any curves: every shape column is an array ``[n]``."""
        names = (*self._kind.same, *self._kind.near)
        keys = self._curve_keys(columns)
        curves, member = _distinct_rows(keys)
        seconds, labels = np.empty(len(keys)), np.empty(len(keys), LABELS.dtype)
        for index, key in enumerate(curves):
            here = member == index
            axes = {name: columns[name][here] for name in self._kind.axes}
            curve = dict(zip(names, key.tolist(), strict=True))
            seconds[here], labels[here] = self.shape_seconds(curve, axes)
        return seconds, labels

    def _curve_keys(self, columns: Mapping[str, Array]) -> Array:
        """The columns that tell curves apart, ``[n, k]``; some kinds have one curve and k = 0."""
        names = (*self._kind.same, *self._kind.near)
        return (
            np.array([columns[name] for name in names])
            .reshape(len(names), len(columns[self._kind.axes[0]]))
            .T
        )

    def _curves_near(self, curve: Mapping[str, float]) -> tuple[NDArray[np.intp], Array, np.int8]:
        same, near = self._kind.same, self._kind.near
        key = np.array([curve[name] for name in (*same, *near)], np.float64)
        exact = np.flatnonzero((self._keys == key).all(axis=1))
        if exact.size:
            return exact, np.ones(1), MEASURED
        candidates = np.flatnonzero((self._keys[:, : len(same)] == key[: len(same)]).all(axis=1))
        if not candidates.size:
            raise ScenarioError(self.lack(curve))
        near_keys = np.log(self._keys[candidates, len(same) :])
        rows, weights, is_inside = nearest(near_keys, np.log(key[len(same) :]), _NUM_NEIGHBOURS)
        return candidates[rows], weights, FITTED if is_inside else EXTRAPOLATED

    def _build_grid(self, curve: int) -> RaggedGrid:
        rows = self.curve_rows(curve)
        axes = {name: self.table.columns[name][rows] for name in self._kind.axes}
        names = (*self._kind.same, *self._kind.near)
        shared = dict(zip(names, self._keys[curve].tolist(), strict=True))

        def bound(at: Sequence[Array]) -> Array:
            return self._ideal({**columns_of(shared, len(at[0])), **self._axes(at)})

        points = np.stack(self._coordinates(axes), axis=1)
        return RaggedGrid(points, self._over_bound[rows], bound)

    def _coordinates(self, axes: Mapping[str, Array]) -> list[Array]:
        """The axes as the grid takes them, outermost first."""
        return [np.log(axes[name]) for name in self._kind.axes]

    def _axes(self, coordinates: Sequence[Array]) -> dict[str, Array]:
        """Back from `_coordinates`."""
        return {name: np.exp(at) for name, at in zip(self._kind.axes, coordinates, strict=True)}

    def _ideal(self, shape: Mapping[str, Array]) -> Array:
        meta = self.table.meta
        return ideal_seconds(meta.kind, shape, self.gpu, meta.precision, meta.variant)


def _distinct_rows(keys: Array) -> tuple[Array, NDArray[np.intp]]:
    """The different rows of ``[n, k]``, and which of them each is: ``[n]``."""
    if not keys.shape[1]:
        return keys[:1], np.zeros(len(keys), np.intp)
    rows, member = np.unique(keys, axis=0, return_inverse=True)
    return rows, member.reshape(-1)


def columns_of(curve: Mapping[str, float], length: int) -> dict[str, Array]:
    """What points of a curve share, as columns of so many rows."""
    return {name: np.full(length, float(value)) for name, value in curve.items()}


def _described(names: tuple[str, ...], values: list[float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in zip(names, values, strict=False))
