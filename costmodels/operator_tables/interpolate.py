"""Interpolation on a ragged grid, along each axis in turn; at its edges the value is held.

Between two neighbours seconds are linear in the roofline's bound on them: exact for a fixed time
and a rate, whatever the axis. At a fifth of AIConfigurator's H200 points, left out, that is
1.9% off for prefill attention (median; 1.3% for decode), where a share of the bound that is linear
in the logarithm of the shape is 2.6% (4.1%) off; for GEMMs there is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int8]
Bound = Callable[[Sequence[Array]], Array]

# Indices into `LABELS` of the lookup: at a point, between points, outside them.
MEASURED, FITTED, EXTRAPOLATED = np.int8(0), np.int8(1), np.int8(2)

# Coordinates are logarithms of counts: two different counts are further apart than this.
_SAME = 1e-10
# Bounds that differ by less are one: weights then follow the coordinate.
_EQUAL_BOUNDS = 1e-6


class RaggedGrid:
    """Seconds over the bound at points that share outer coordinates but need not fill a box.

    For each value of the first coordinate there is a grid of the others of its own, of any extent:
    long contexts are measured with few sequences only.
    """

    def __init__(self, points: Array, values: Array, bound: Bound) -> None:
        """``points`` is ``[p, d]`` with no point twice, ``values`` ``[p]`` their seconds over the
        bound; ``bound`` gives that of any points: d arrays ``[q]`` in, ``[q]`` out."""
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
        """The value at each query and whether it was measured: ``[q]`` both.

        ``at`` holds one array ``[q]`` a dimension.
        """
        x = np.clip(at[0], self._at[0], self._at[-1])
        # The place just above x and the one below; both the same at a point.
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
        """Where the nearest places do not reach as far as those on both sides of them, these."""
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
        """The bound of points at one value of the first coordinate."""

        def bound(at: Sequence[Array]) -> Array:
            return self._bound([np.full_like(at[0], self._at[place]), *at])

        return bound


def _not_zero(values: Array) -> Array:
    return np.where(values == 0, 1.0, values)


def nearest(keys: Array, key: Array, count: int) -> tuple[NDArray[np.intp], Array, bool]:
    """The ``count`` rows of ``keys`` closest to ``key``, their weights, and whether it lies inside.

    ``keys`` is ``[k, d]``. Weights fall with the squared distance and sum to 1; in one dimension
    they are those of linear interpolation. Inside: within the extent of ``keys`` along every
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
    """The keys below and above, weighted linearly; the outermost one outside them."""
    order = np.argsort(keys)
    place = int(np.searchsorted(keys[order], key))
    if place in (0, len(keys)):
        return order[[min(place, len(keys) - 1)]], np.ones(1)
    rows = order[[place - 1, place]]
    weight = (key - keys[rows[0]]) / (keys[rows[1]] - keys[rows[0]])
    return rows, np.array([1 - weight, weight])
