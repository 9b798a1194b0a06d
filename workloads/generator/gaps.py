"""Gaps between arrivals, of mean 1: what makes a renewal process."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sim.arrays import Float64

ALL_AT_ONCE = "all-at-once"
PROCESSES = ("poisson", "gamma", "weibull", "constant", ALL_AT_ONCE)
LEAST_CV, MOST_CV = 0.01, 100.0


def unit_gaps(process: str, rng: np.random.Generator, n: int, cv: float) -> Float64:
    """``[n]`` gaps in order, started at an arrival; ``cv`` is theirs, for gamma and weibull."""
    if process == "poisson":
        return -np.log1p(-rng.random(n))
    if process == "gamma":
        return rng.standard_gamma(cv**-2, n) * cv**2
    if process == "weibull":
        return _weibull(-np.log1p(-rng.random(n)), weibull_shape(cv))
    if process == "constant":
        return np.minimum(np.arange(n), 1.0)
    return np.zeros(n)


def stationary_gaps(process: str, rng: np.random.Generator, n: int, cv: float) -> Float64:
    """The same, begun long before 0: the first is what is left of a gap that covers 0.

    That gap is drawn by its length (longer ones cover more time), and 0 lies anywhere in it.
    Without this, bursty sources would all begin with a burst.
    """
    elapsed = rng.random()
    if process == "gamma":
        covering = rng.standard_gamma(cv**-2 + 1) * cv**2
    elif process == "weibull":
        shape = weibull_shape(cv)
        covering = float(_weibull(np.array(rng.standard_gamma(1 + 1 / shape)), shape))
    elif process == "constant":
        return np.concatenate(([elapsed], np.ones(n - 1)))
    else:
        covering = rng.standard_gamma(2.0)
    rest = unit_gaps(process, rng, n - 1, cv)
    return np.concatenate(([elapsed * covering], rest))


@lru_cache(maxsize=4096)
def weibull_shape(cv: float) -> float:
    """The shape parameter of a Weibull distribution with that standard deviation over mean."""
    low, high = 0.05, 500.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if weibull_cv(middle) > cv else (low, middle)
    return math.sqrt(low * high)


def weibull_cv(shape: float) -> float:
    """Standard deviation over mean of a Weibull distribution."""
    ln_ratio = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
    return math.sqrt(math.expm1(ln_ratio))


def _weibull(exponentials: Float64, shape: float) -> Float64:
    scale: Float64 = exponentials ** (1 / shape) / math.exp(math.lgamma(1 + 1 / shape))
    return scale
