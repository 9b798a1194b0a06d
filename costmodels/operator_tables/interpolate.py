"""Interpolation on a ragged grid: linear along each axis in turn, the value held at the edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int8]

# Indices into `LABELS` of the lookup: at a point, between points, outside them.
MEASURED, FITTED, EXTRAPOLATED = np.int8(0), np.int8(1), np.int8(2)

# Coordinates are logarithms of counts: two different counts are further apart than this.
_SAME = 1e-10


class RaggedGrid:
    """Values at points that share outer coordinates but need not fill a box.

    For each value of the first coordinate there is a grid of the others of its own, of any extent:
    long contexts are measured with few sequences only.
    """

    def __init__(self, points: Array, values: Array) -> None:
        """``points`` is ``[p, d]`` with no point twice, ``values`` ``[p]``."""
        self._at, first = np.unique(points[:, 0], return_inverse=True)
        self._inner: list[RaggedGrid] = []
        self._values = values[np.argsort(first)]
        if points.shape[1] > 1:
            members = [np.flatnonzero(first == place) for place in range(len(self._at))]
            self._inner = [RaggedGrid(points[rows, 1:], values[rows]) for rows in members]

    def __call__(self, at: Sequence[Array]) -> tuple[Array, Codes]:
        """The value at each query and whether it was measured: ``[q]`` both.

        ``at`` holds one array ``[q]`` a dimension.
        """
        x = np.clip(at[0], self._at[0], self._at[-1])
        # The place just above x and the one below; both the same at a point.
        high = np.minimum(np.searchsorted(self._at, x - _SAME), len(self._at) - 1)
        low = np.where(self._at[high] > x + _SAME, high - 1, high)
        span = np.where(high > low, self._at[high] - self._at[low], 1.0)
        weight = np.where(high > low, (x - self._at[low]) / span, 0.0)
        code = np.where(high > low, FITTED, MEASURED)
        code = np.where(np.abs(at[0] - x) > _SAME, EXTRAPOLATED, code)
        below, code_below = self._inner_at(low, at[1:])
        above, code_above = self._inner_at(high, at[1:])
        value = (1 - weight) * below + weight * above
        return value, np.maximum(code, np.maximum(code_below, code_above)).astype(np.int8)

    def _inner_at(self, place: NDArray[np.intp], at: Sequence[Array]) -> tuple[Array, Codes]:
        if not self._inner:
            return self._values[place], np.zeros(len(place), np.int8)
        value, code = np.empty(len(place)), np.empty(len(place), np.int8)
        for index in np.unique(place):
            here = place == index
            value[here], code[here] = self._inner[index]([axis[here] for axis in at])
        return value, code


def nearest(keys: Array, key: Array, count: int) -> tuple[NDArray[np.intp], Array, bool]:
    """The ``count`` rows of ``keys`` closest to ``key``, their weights, and whether it lies inside.

    ``keys`` is ``[k, d]``. Weights fall with the squared distance and sum to 1. Inside: within the
    extent of ``keys`` along every dimension.
    """
    distance = np.linalg.norm(keys - key, axis=1)
    rows = np.argsort(distance, kind="stable")[:count]
    weights = 1 / np.maximum(distance[rows], _SAME) ** 2
    is_inside = bool(np.all((key >= keys.min(axis=0)) & (key <= keys.max(axis=0))))
    return rows, weights / weights.sum(), is_inside
