"""Whether a table's GEMMs take steps as rows grow, and where: tiles of rows are computed whole.

Libraries that choose among many kernels hardly show it; a kernel with one tile does. A table tells
by its own points: each is predicted from its two neighbours, by a line and by a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.operator_tables.table import Array

# Beyond, a tile is a small part of the rows.
_RANGES = ((0.0, 128.0), (128.0, 1024.0), (1024.0, 4096.0))
_FEWEST = 12
"""Points in a range, for it to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSteps:
    """The ranges of rows, (above, up to), in which time is a step function of rows."""

    ranges: tuple[tuple[float, float], ...]

    def snap(self, rows: Array, measured: Array) -> Array:
        """Rows between two measured counts, in these ranges, as the count on the same side of the
        tile's end between them: ``[n]``. ``measured`` ascends."""
        steps = np.zeros(len(rows), np.bool_)
        for above, up_to in self.ranges:
            steps |= (rows > above) & (rows <= up_to)
        place = np.searchsorted(measured, rows)
        steps &= (place > 0) & (place < len(measured))
        place = np.clip(place, 1, len(measured) - 1) if len(measured) > 1 else place * 0
        low, high = measured[np.maximum(place - 1, 0)], measured[place]
        side = np.where(rows <= tile_end(low, high), low, high)
        return np.where(steps & (rows != high), side, rows)


def find_steps(rows: Array, seconds: Array, bound_s: Array, curves: Sequence[slice]) -> RowSteps:
    """The ranges in which steps predict points from their neighbours better than lines do.

    ``rows``, ``seconds`` and the roofline's ``bound_s`` are of all points, ``[n]``, those of a
    curve together and ascending.
    """
    inner = [np.arange(c.start + 1, c.stop - 1, dtype=np.int64) for c in curves]
    middle = np.concatenate([np.empty(0, np.int64), *inner])
    before, after = middle - 1, middle + 1
    span = bound_s[after] - bound_s[before]
    is_flat = np.abs(span) <= 1e-6 * bound_s[before]
    log_span = np.log(rows[after] / rows[before])
    share = np.where(
        is_flat,
        np.log(rows[middle] / rows[before]) / log_span,
        (bound_s[middle] - bound_s[before]) / np.where(is_flat, 1.0, span),
    )
    line_s = (1 - share) * seconds[before] + share * seconds[after]
    is_low = rows[middle] <= tile_end(rows[before], rows[after])
    step_s = np.where(is_low, seconds[before], seconds[after])
    line, step = (np.abs(found / seconds[middle] - 1) for found in (line_s, step_s))
    chosen = []
    for above, up_to in _RANGES:
        inside = (rows[middle] > above) & (rows[middle] <= up_to)
        if inside.sum() >= _FEWEST and step[inside].mean() < line[inside].mean():
            chosen.append((above, up_to))
    return RowSteps(ranges=tuple(chosen))


def tile_end(low: Array, high: Array) -> Array:
    """The multiple of the largest power of two from ``low`` to below ``high``: where a tile that
    divides the rows so ends."""
    end, found = low.copy(), np.zeros(len(low), np.bool_)
    for power in range(20, -1, -1):
        size = float(2**power)
        multiple = np.floor((high - 1) / size) * size
        fits = ~found & (multiple >= low) & (multiple > 0)
        end, found = np.where(fits, multiple, end), found | fits
    return end
