"""How many there are of something that comes one after another: turns, passages, images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.lengths import Lengths, mean_tokens, sample_tokens
from workloads.generator.limits import MOST_COUNTS as MOST


@dataclass(frozen=True, slots=True)
class Counts:
    """At least 1. Another follows with ``another[0]`` after the first, ``another[1]`` after the
    second, ...; the last probability holds from there on, up to ``most``."""

    another: tuple[float, ...]
    most: int = MOST

    def __post_init__(self) -> None:
        if not self.another or not all(0 <= p <= 1 for p in self.another):
            raise ScenarioError(f"probabilities {self.another} of another turn; expected 0 to 1")
        if not 1 <= self.most <= MOST:
            raise ScenarioError(f"at most {self.most} turns; expected 1 to {MOST}")
        if self.another[-1] == 1 and self.most == MOST and 0 not in self.another:
            raise ScenarioError("the last probability of another turn is 1: the turns never end")


def counted(number: int) -> Counts:
    """Always ``number``."""
    return Counts((1.0,), number) if number > 1 else Counts((0.0,))


ONE = counted(1)


def geometric(mean: float, most: int = MOST) -> Counts:
    """Another with the same probability each time, so that there are ``mean`` on average."""
    if not 1 <= mean < math.inf:
        raise ScenarioError(f"a mean of {mean} turns; expected at least 1")
    return Counts((1 - 1 / mean,), most)


def sample_counts(counts: Counts | Lengths, uniforms: Float64) -> Int64:
    """``[n]`` counts at ``uniforms`` ``[n]``."""
    if isinstance(counts, Lengths):
        return sample_tokens(counts, uniforms)
    drawn = np.searchsorted(1 - _survival(counts), uniforms, side="right")
    return np.clip(drawn, 1, counts.most)


def mean_count(counts: Counts | Lengths) -> float:
    """The mean of the distribution."""
    if isinstance(counts, Lengths):
        return mean_tokens(counts)
    return float(_survival(counts)[: counts.most].sum())


def _survival(counts: Counts) -> Float64:
    """P(more than k) for k = 0, 1, ... up to where it is below 2**-53 or the most is reached."""
    survival: Float64 = np.cumprod((1.0, *counts.another), dtype=np.float64)
    last = counts.another[-1]
    if len(survival) < counts.most and survival[-1] > 0 and last > 0:
        left = counts.most - len(survival)
        if last < 1:
            left = min(left, math.ceil(math.log(2.0**-60) / math.log(last)))
        survival = np.append(survival, survival[-1] * last ** np.arange(1.0, left + 1))
    return survival
