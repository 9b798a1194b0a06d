"""When requests arrive: Poisson, gamma renewal, constant spacing, or all at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.errors import ScenarioError

LATEST_ARRIVAL_NS = 2**62
"""146 years: the latest arrival allowed, which leaves int64 room for the run behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An arrival process. Raises ScenarioError for values it cannot have."""

    process: str = "poisson"
    """``poisson``, ``gamma`` (gaps of the given ``cv``), ``constant`` or ``all-at-once``."""
    requests_per_s: float | None = None
    """Mean rate; None for ``all-at-once``, which has none."""
    cv: float = 1.0
    """Standard deviation over mean of the gaps, for ``gamma``: 1 is Poisson, above is bursty."""

    def __post_init__(self) -> None:
        if self.process not in _UNIT_GAPS:
            raise ScenarioError(
                f"arrival process {self.process!r} is unknown; known: {', '.join(_UNIT_GAPS)}"
            )
        if self.process == ALL_AT_ONCE:
            if self.requests_per_s is not None:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals have no requests_per_s")
        elif self.requests_per_s is None or not 0 < self.requests_per_s < math.inf:
            raise ScenarioError(
                f"requests_per_s is {self.requests_per_s}; {self.process} arrivals need a number "
                "above 0"
            )
        if not 0.01 <= self.cv <= 100:
            raise ScenarioError(f"cv of arrivals is {self.cv}; expected a number from 0.01 to 100")


def arrival_times_s(
    arrivals: Arrivals, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """``[num_requests]`` times in seconds, non-decreasing.

    Random processes are started at 0, so the first request comes one gap later; with constant
    spacing it comes at 0. Gaps are drawn in order at a rate of 1/s and then scaled: the first m
    times do not depend on ``num_requests``, and rates are compared on the same gaps.
    """
    times = np.cumsum(_UNIT_GAPS[arrivals.process](rng, num_requests, arrivals.cv))
    return times / (arrivals.requests_per_s or 1.0)


def _poisson(rng: np.random.Generator, n: int, cv: float) -> NDArray[np.float64]:
    return -np.log1p(-rng.random(n))


def _gamma(rng: np.random.Generator, n: int, cv: float) -> NDArray[np.float64]:
    return rng.standard_gamma(cv**-2, n) * cv**2


def _constant(rng: np.random.Generator, n: int, cv: float) -> NDArray[np.float64]:
    return np.minimum(np.arange(n), 1.0)


def _all_at_once(rng: np.random.Generator, n: int, cv: float) -> NDArray[np.float64]:
    return np.zeros(n)


ALL_AT_ONCE = "all-at-once"
_UNIT_GAPS = {
    "poisson": _poisson,
    "gamma": _gamma,
    "constant": _constant,
    ALL_AT_ONCE: _all_at_once,
}
