"""The load at which attainment crosses its target, from a monotone curve through pooled counts.

The share of requests that miss the SLO grows with the load. Between the loads that were run, its
logit is taken as linear in the logarithm of the load, after pooling neighbors that noise has put in
the wrong order (isotonic regression). Counts are pooled over units (replications, or stretches of a
run) before the crossing is sought: the mean of the units' own crossings would be too high, because
a unit with few misses gains more than one with many loses. The interval is the t interval over the
jackknife's pseudo-values, one per unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64

_STEP = 3.0
"""Jump of the logit between neighboring loads above which nothing between them is interpolated."""
_BEYOND = float(np.log(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A load with its 95% interval."""

    level: float
    low: float
    high: float

    @property
    def precision(self) -> float:
        """The larger side of the interval, relative to the level."""
        return max(self.high - self.level, self.level - self.low) / self.level


def crossing(levels: Float64, good: Int64, arrived: Int64, attainment: float) -> Estimate:
    """Return the load at which pooled attainment falls to ``attainment``.

    ``levels`` is ``[k]``, k >= 2, increasing and positive; ``good`` and ``arrived`` are counts
    ``[k, units]``. A curve that does not cross between the levels is extended, to at most twice or
    half of them.
    """
    x = np.log(levels)
    whole = _crossing(x, good.sum(axis=1), arrived.sum(axis=1), attainment)
    units = good.shape[1]
    low = high = whole
    if units > 1:
        without = [
            _crossing(x, np.delete(good, u, 1).sum(1), np.delete(arrived, u, 1).sum(1), attainment)
            for u in range(units)
        ]
        pseudo = units * whole - (units - 1) * np.array(without)
        half = half_width(pseudo)
        low, high = whole - half, whole + half
    # Where attainment drops in one jump, the crossing lies anywhere between the two loads.
    logits = _logits(good.sum(axis=1), arrived.sum(axis=1), attainment)
    below = int(np.clip(np.searchsorted(x, whole, "right") - 1, 0, len(x) - 2))
    if logits[below + 1] - logits[below] > _STEP and x[below] <= whole <= x[below + 1]:
        low, high = min(low, float(x[below])), max(high, float(x[below + 1]))
    return Estimate(level=float(np.exp(whole)), low=float(np.exp(low)), high=float(np.exp(high)))


def pooled_crossing(levels: Float64, good: Int64, arrived: Int64, attainment: float) -> float:
    """Return the crossing of counts ``[k]`` alone, without an interval."""
    return float(np.exp(_crossing(np.log(levels), good, arrived, attainment)))


def half_width(values: Float64) -> float:
    """Return half of the 95% t interval of the mean of independent values; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    quantile = float(stdtrit(len(values) - 1, 0.975))
    return quantile * float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))


def monotone(values: Float64, weights: Float64) -> Float64:
    """Return the non-decreasing values nearest in weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while pools and pools[-1][0] > value:
            other, heavy, count = pools.pop()
            value = (value * weight + other * heavy) / (weight + heavy)
            weight, size = weight + heavy, size + count
        pools.append((value, weight, size))
    return np.repeat([value for value, _, _ in pools], [size for _, _, size in pools])


def _logits(good: Int64, arrived: Int64, attainment: float) -> Float64:
    """Return the logit of the share of misses, made monotone.

    Half a miss is added in the proportion of the target, which keeps the logit finite and leaves
    every load on its side of the target.
    """
    missed = arrived - good + 0.5
    kept = good + 0.5 * attainment / (1 - attainment)
    return monotone(np.log(missed / kept), arrived.astype(np.float64))


def _crossing(x: Float64, good: Int64, arrived: Int64, attainment: float) -> float:
    logits = _logits(good, arrived, attainment)
    wanted = float(np.log((1 - attainment) / attainment))
    below = int(np.clip(np.searchsorted(logits, wanted + 1e-9, "right") - 1, 0, len(x) - 2))
    rise, run = logits[below + 1] - logits[below], x[below + 1] - x[below]
    at = x[below] if wanted < logits[below] else x[below + 1]  # a flat end is not extended
    if rise > 0:
        at = x[below] + (wanted - logits[below]) / rise * run
    return float(np.clip(at, x[0] - _BEYOND, x[-1] + _BEYOND))
