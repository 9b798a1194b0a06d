"""Seconds of any shape from an operator table, each with an evidence label.

The value looked up is seconds over the roofline's bound: it varies slowly, and held beyond the last
point it lets time grow as the roofline does. Between the points of a curve see `RaggedGrid`; curves
that were not measured are read off their nearest neighbors in log shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodels.tables.ideal import ideal_seconds
from costmodels.tables.kinds import KINDS
from costmodels.tables.table import OperatorTable
from costmodels.work import Array
from sim.errors import ScenarioError

Codes = NDArray[np.int8]
Bound = Callable[[Sequence[Array]], Array]

# Indices into `LABELS` of the lookup: at a point, between points, outside them.
MEASURED, FITTED, EXTRAPOLATED = np.int8(0), np.int8(1), np.int8(2)

# Coordinates are logarithms of counts: two different counts are further apart than this.
_SAME = 1e-10
# Bounds that differ by less count as equal: weights then follow the coordinate.
_EQUAL_BOUNDS = 1e-6


class RaggedGrid:
    """Seconds over the bound at points that share outer coordinates but need not fill a box.

    Each value of the first coordinate has its own grid of the others, of any extent: long contexts
    are measured with few sequences only.
    """

    def __init__(self, points: Array, values: Array, bound: Bound) -> None:
        """Build the grid from points and their values.

        ``points`` is ``[p, d]`` without repeats, ``values`` ``[p]`` their seconds over the bound;
        ``bound`` returns the bound of any points: d arrays ``[q]`` in, ``[q]`` out.
        """
        self._bound = bound
        self._at, first = np.unique(points[:, 0], return_inverse=True)
        self._inner: list[RaggedGrid] = []
        self._values = values[np.argsort(first)]
        if points.shape[1] > 1:
            members = [np.flatnonzero(first == place) for place in range(len(self._at))]
            self._inner = [
                RaggedGrid(points[rows, 1:], values[rows], self._bound_at(place))
                for place, rows in enumerate(members)
            ]

    def __call__(self, at: Sequence[Array]) -> tuple[Array, Codes]:
        """Return the value at each query and whether it was measured: ``[q]`` both.

        ``at`` holds one array ``[q]`` per dimension.
        """
        x = np.clip(at[0], self._at[0], self._at[-1])
        # The place just above x and the one below; at a point both are that point.
        high = np.minimum(np.searchsorted(self._at, x - _SAME), len(self._at) - 1)
        low = np.where(self._at[high] > x + _SAME, high - 1, high)
        code = np.where(high > low, FITTED, MEASURED)
        code = np.where(np.abs(at[0] - x) > _SAME, EXTRAPOLATED, code)
        below, code_below = self._inner_at(low, at[1:])
        if (low == high).all():
            value, code = below, np.maximum(code, code_below).astype(np.int8)
        else:
            above, code_above = self._inner_at(high, at[1:])
            value = self._between(x, low, high, at[1:], below, above)
            code = np.maximum(code, np.maximum(code_below, code_above)).astype(np.int8)
        return self._around_gaps(at, value, code)

    def _around_gaps(self, at: Sequence[Array], value: Array, code: Codes) -> tuple[Array, Codes]:
        """Fill gaps: where the nearest places do not reach far enough, use the nearest on both
        sides that do."""
        inside = (at[0] >= self._at[0] - _SAME) & (at[0] <= self._at[-1] + _SAME)
        missing = np.flatnonzero((code == EXTRAPOLATED) & inside)
        if not self._inner or not missing.size:
            return value, code
        x, others = at[0][missing], [axis[missing] for axis in at[1:]]
        places = np.arange(len(self._at))
        reached = [
            self._inner_at(np.full(len(missing), place), others)[1] != EXTRAPOLATED
            for place in places
        ]
        covers = np.stack(reached)
        before = covers & (self._at[:, None] <= x + _SAME)
        after = covers & (self._at[:, None] >= x - _SAME)
        found = before.any(axis=0) & after.any(axis=0)
        low = np.where(before, places[:, None], -1).max(axis=0)[found]
        high = np.where(after, places[:, None], len(places)).min(axis=0)[found]
        inner = [axis[found] for axis in others]
        below, above = self._inner_at(low, inner)[0], self._inner_at(high, inner)[0]
        rows = missing[found]
        value, code = value.copy(), code.copy()
        value[rows] = self._between(x[found], low, high, inner, below, above)
        code[rows] = FITTED
        return value, code

    def _between(
        self,
        x: Array,
        low: NDArray[np.intp],
        high: NDArray[np.intp],
        others: Sequence[Array],
        below: Array,
        above: Array,
    ) -> Array:
        bound = self._bound([x, *others])
        bound_low = self._bound([self._at[low], *others])
        bound_high = self._bound([self._at[high], *others])
        span, step = bound_high - bound_low, self._at[high] - self._at[low]
        is_flat = np.abs(span) <= _EQUAL_BOUNDS * bound_low
        weight = np.where(is_flat, x - self._at[low], bound - bound_low)
        weight = np.clip(weight / _not_zero(np.where(is_flat, step, span)), 0.0, 1.0)
        seconds = (1 - weight) * below * bound_low + weight * above * bound_high
        return np.where(high > low, seconds / bound, below)

    def _inner_at(self, place: NDArray[np.intp], at: Sequence[Array]) -> tuple[Array, Codes]:
        if not self._inner:
            return self._values[place], np.zeros(len(place), np.int8)
        value, code = np.empty(len(place)), np.empty(len(place), np.int8)
        for index in np.unique(place):
            here = place == index
            value[here], code[here] = self._inner[index]([axis[here] for axis in at])
        return value, code

    def _bound_at(self, place: int) -> Bound:
        """Return the bound of points at one value of the first coordinate."""

        def bound(at: Sequence[Array]) -> Array:
            return self._bound([np.full_like(at[0], self._at[place]), *at])

        return bound


def _not_zero(values: Array) -> Array:
    return np.where(values == 0, 1.0, values)


def nearest(keys: Array, key: Array, count: int) -> tuple[NDArray[np.intp], Array, bool]:
    """Return the ``count`` rows of ``keys`` closest to ``key``, their weights, and whether it lies
    inside.

    ``keys`` is ``[k, d]``. Weights fall with the squared distance and sum to 1; in one dimension
    they are those of linear interpolation. Inside means within the extent of ``keys`` along every
    dimension.
    """
    is_inside = bool(np.all((key >= keys.min(axis=0)) & (key <= keys.max(axis=0))))
    if keys.shape[1] == 1:
        rows, weights = _around(keys[:, 0], float(key[0]))
        return rows, weights, is_inside
    distance = np.linalg.norm(keys - key, axis=1)
    rows = np.argsort(distance, kind="stable")[:count]
    weights = 1 / np.maximum(distance[rows], _SAME) ** 2
    return rows, weights / weights.sum(), is_inside


def _around(keys: Array, key: float) -> tuple[NDArray[np.intp], Array]:
    """Return the keys below and above, weighted linearly; outside their range, the outermost
    one."""
    order = np.argsort(keys)
    place = int(np.searchsorted(keys[order], key))
    if place in (0, len(keys)):
        return order[[min(place, len(keys) - 1)]], np.ones(1)
    rows = order[[place - 1, place]]
    weight = (key - keys[rows[0]]) / (keys[rows[1]] - keys[rows[0]])
    return rows, np.array([1 - weight, weight])


# By the codes above: the shape itself is in the table, inside its range, outside it.
LABELS = np.array(["measured", "fitted", "extrapolated"])

# By leave-one-out over AIConfigurator's GEMM tables: 1 neighbor 6.6% median, 4 neighbors 3.8%.
# Kinds with one `near` column use the two around it.
_NUM_NEIGHBORS = 4

Labels = NDArray[np.str_]


def label_codes(labels: Labels) -> NDArray[np.int64]:
    """Return the places in `LABELS`, larger for weaker: ``[n]``."""
    codes: NDArray[np.int64] = (labels[:, None] == LABELS).argmax(axis=1)
    return codes


class Lookup:
    """Interpolates one table. Subclasses name the shape of one kind."""

    def __init__(self, table: OperatorTable) -> None:
        """Prepare the table's curves. Raises `ScenarioError` if its GPU is unknown or lacks a
        peak it needs."""
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
        """Number of curves of the table."""
        return len(self._keys)

    def curve_rows(self, curve: int) -> slice:
        """Return the table's rows of one curve."""
        return slice(int(self._starts[curve]), int(self._starts[curve + 1]))

    def shape_seconds(
        self,
        curve: Mapping[str, float],
        axes: Mapping[str, Array],
        ideal_s: Array | None = None,
    ) -> tuple[Array, Labels]:
        """Return seconds and label of each shape: ``[n]`` both; 0 without work.

        ``curve`` has one number for each of the kind's ``same`` and ``near`` columns, ``axes`` one
        array ``[n]`` for each of its ``axes``. ``ideal_s`` replaces the roofline's bound of these
        shapes if the true batch is only equivalent to them. Raises `ScenarioError` if no measured
        curve shares the ``same`` columns.
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
        # A shape smaller than any measured one takes at least the shortest time: a kernel's fixed
        # part.
        floor_s = min(self.table.seconds[self.curve_rows(int(one))].min() for one in curves)
        seconds = np.where(codes == EXTRAPOLATED, np.maximum(seconds, floor_s), seconds)
        seconds = np.where(has_work, seconds, 0.0)
        return seconds, LABELS[np.where(has_work, codes, MEASURED)]

    def lack(self, same: Mapping[str, float]) -> str:
        """Return why the table has no curve with these ``same`` columns; empty if it has one."""
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
        """Return seconds and label of shapes of any curves; every shape column is an array
        ``[n]``."""
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
        """Return the columns that tell curves apart, ``[n, k]``; some kinds have one curve and k
        = 0."""
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
        rows, weights, is_inside = nearest(near_keys, np.log(key[len(same) :]), _NUM_NEIGHBORS)
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
        """Return the axes as the grid takes them, outermost first."""
        return [np.log(axes[name]) for name in self._kind.axes]

    def _axes(self, coordinates: Sequence[Array]) -> dict[str, Array]:
        """Return the axes that `_coordinates` converted."""
        return {name: np.exp(at) for name, at in zip(self._kind.axes, coordinates, strict=True)}

    def _ideal(self, shape: Mapping[str, Array]) -> Array:
        meta = self.table.meta
        return ideal_seconds(meta.kind, shape, self.gpu, meta.precision, meta.variant)


def _distinct_rows(keys: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the different rows of ``[n, k]``, and the index of each row among them: ``[n]``."""
    if not keys.shape[1]:
        return keys[:1], np.zeros(len(keys), np.intp)
    rows, member = np.unique(keys, axis=0, return_inverse=True)
    return rows, member.reshape(-1)


def columns_of(curve: Mapping[str, float], length: int) -> dict[str, Array]:
    """Return the values that points of a curve share, as columns of ``length`` rows."""
    return {name: np.full(length, float(value)) for name, value in curve.items()}


def _described(names: tuple[str, ...], values: list[float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in zip(names, values, strict=False))
