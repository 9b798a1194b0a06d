"""Fit exchanges between ranks by latency and bandwidth: t = latency + bytes / bandwidth, by regime.

Libraries change protocol and algorithm with size, so one line does not fit all sizes. Further
regimes are only used if they make the fit clearly better.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

from calibrate.tables.kernel_holdout import is_held_out
from costmodels.tables.table import LinkFit, OperatorTable
from costmodels.work import Array

_MOST_REGIMES = 3
_LEAST_POINTS = 3
# Another regime must reduce the mean error by a tenth, unless the error is already small enough.
_BETTER = 0.9
_REWEIGHTED = 12
_GOOD_ENOUGH = 0.01

Regimes = tuple[tuple[float, float, float], ...]


def fit_links(table: OperatorTable) -> tuple[LinkFit, ...]:
    """Fit each number of ranks in a table of an exchange."""
    held_out = is_held_out(table)
    found = []
    for ranks in np.unique(table.columns["ranks"]):
        here = table.columns["ranks"] == ranks
        num_bytes, seconds = table.columns["bytes"][here], table.seconds[here]
        regimes = fit_regimes(num_bytes, seconds)
        out = held_out[here]
        missed = None
        if out.any() and (~out).sum() >= _LEAST_POINTS:
            rest = fit_regimes(num_bytes[~out], seconds[~out])
            missed = float(np.median(_errors(rest, num_bytes[out], seconds[out])))
        found.append(
            LinkFit(
                ranks=int(ranks),
                regimes=regimes,
                median=float(np.median(_errors(regimes, num_bytes, seconds))),
                held_out=missed,
            )
        )
    return tuple(found)


def fit_regimes(num_bytes: Array, seconds: Array) -> Regimes:
    """Return the regimes, as `LinkFit.regimes`, of points sorted by ``num_bytes``; arrays are
    ``[n]``."""
    best = _line_fits(num_bytes, seconds, ())
    loss = _loss(best, num_bytes, seconds)
    for extra in range(1, _MOST_REGIMES):
        tried = [
            _line_fits(num_bytes, seconds, cuts)
            for cuts in combinations(range(_LEAST_POINTS, len(seconds)), extra)
            if min(np.diff((0, *cuts, len(seconds)))) >= _LEAST_POINTS
        ]
        if not tried or loss < _GOOD_ENOUGH:
            break
        better = min(tried, key=lambda regimes: _loss(regimes, num_bytes, seconds))
        if _loss(better, num_bytes, seconds) > _BETTER * loss:
            break
        best, loss = better, _loss(better, num_bytes, seconds)
    return best


def regime_seconds(regimes: Regimes, num_bytes: Array) -> Array:
    """Return the seconds of a fit, ``[n]``."""
    ends = np.array([end for end, _, _ in regimes[:-1]])
    place = np.searchsorted(ends, num_bytes, side="left")
    latency_s = np.array([latency for _, latency, _ in regimes])
    bytes_per_s = np.array([rate for _, _, rate in regimes])
    found: Array = latency_s[place] + num_bytes / bytes_per_s[place]
    return found


def _line_fits(num_bytes: Array, seconds: Array, cuts: tuple[int, ...]) -> Regimes:
    bounds = (0, *cuts, len(seconds))
    found = []
    for first, last in pairwise(bounds):
        latency_s, per_byte_s = _line(num_bytes[first:last], seconds[first:last])
        end = float(np.sqrt(num_bytes[last - 1] * num_bytes[last])) if last < len(seconds) else 0.0
        found.append((end or float(num_bytes[-1]), latency_s, 1 / max(per_byte_s, 1e-18)))
    return tuple(found)


def _line(num_bytes: Array, seconds: Array) -> tuple[float, float]:
    """Return the latency and seconds per byte with the least absolute relative error; neither is
    negative.

    Uses reweighted least squares, so that a size that another process disturbed does not bend the
    line.
    """
    from scipy.optimize import nnls

    scale = float(num_bytes.mean())
    relative = np.stack([1 / seconds, num_bytes / scale / seconds], axis=1)
    weights = np.ones(len(seconds))
    found = np.zeros(2)
    for _ in range(_REWEIGHTED):
        found, _ = nnls(relative * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(relative @ found - 1), 1e-3))
    return float(found[0]), float(found[1]) / scale


def _errors(regimes: Regimes, num_bytes: Array, seconds: Array) -> Array:
    errors: Array = np.abs(regime_seconds(regimes, num_bytes) / seconds - 1)
    return errors


def _loss(regimes: Regimes, num_bytes: Array, seconds: Array) -> float:
    return float(np.mean(_errors(regimes, num_bytes, seconds)))
