"""How long something takes, in seconds: a fixed time or a clipped mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64
from sim.errors import ScenarioError
from workloads.generator.mixtures import Gamma, Lognormal, check_components, draw, midpoints

SHORTEST_S = 1e-6
LONGEST_S = 1e8
"""Three years: longer waits are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """A mixture of ``components`` of seconds, clipped to ``[min_s, max_s]``; equal ends are a fixed
    time, which may be 0, and need no component. Raises ScenarioError for values it cannot have.
    """

    components: tuple[Lognormal | Gamma, ...] = ()
    min_s: float = SHORTEST_S
    max_s: float = LONGEST_S

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s < math.inf:
            raise ScenarioError(
                f"times from {self.min_s} to {self.max_s} s; expected 0 <= min <= max"
            )
        if self.min_s == self.max_s:
            return
        if self.min_s <= 0:
            raise ScenarioError("times that vary need a min above 0")
        check_components(self.components, "times")


def fixed_s(seconds: float) -> Durations:
    """Always ``seconds``."""
    return Durations(min_s=seconds, max_s=seconds)


NO_TIME = fixed_s(0.0)


def exponential_s(mean_s: float) -> Durations:
    """Exponential with that mean."""
    return Durations(components=(Gamma(shape=1.0, scale=mean_s),))


def sample_s(durations: Durations, uniforms: Float64) -> Float64:
    """``[n]`` seconds: the inverse CDF at ``uniforms`` ``[n]``."""
    if durations.min_s == durations.max_s:
        return np.full(len(uniforms), durations.min_s)
    return draw(durations.components, durations.min_s, durations.max_s, uniforms)


def mean_s(durations: Durations) -> float:
    """The mean of the distribution."""
    return float(sample_s(durations, midpoints()).mean())
