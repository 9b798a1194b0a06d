"""Changing rates: bursts and silences, and rate profiles that repeat.

A process of constant mean rate is drawn on an operational clock, and its times are mapped to real
time. Under a profile, that is by the inverse of the integrated rate: the operational clock runs
fast where the rate is high. So the process's gaps are the same for every profile, and a profile of
factors 1 changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import yaml

from sim.arrays import Float64
from sim.errors import ScenarioError
from workloads.generator.distributions import Durations, mean_s, sample_s, stream

_BURN_IN_CYCLES = 50
"""Cycles that pass before time 0, so that it may lie in a burst or in a silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Durations of bursts and silences. Raises ScenarioError for values out of range."""

    on_s: Durations
    off_s: Durations

    def __post_init__(self) -> None:
        if mean_s(self.on_s) <= 0:
            raise ScenarioError("on_s: bursts must last longer than 0 s")

    @property
    def on_fraction(self) -> float:
        """The share of time in bursts."""
        on_s = mean_s(self.on_s)
        return on_s / (on_s + mean_s(self.off_s))


def with_silences(operational_s: Float64, on_off: OnOff, seed: int) -> Float64:
    """Return real times of ``operational_s`` ``[n]``, which are in order and of constant mean rate.

    All arrivals fall into bursts, at a rate raised so that the mean is kept. Bursts and silences
    are drawn in seconds from streams of their own: another rate has more or fewer arrivals in the
    same bursts.
    """
    if not len(operational_s):
        return operational_s
    on_time_s = operational_s * on_off.on_fraction
    cycle_s = mean_s(on_off.on_s) + mean_s(on_off.off_s)
    origin_s = _BURN_IN_CYCLES * cycle_s
    num_cycles = 2 * _BURN_IN_CYCLES + int(2 * operational_s[-1] / cycle_s)
    while True:
        bursts_s = sample_s(on_off.on_s, stream(seed, "bursts").random(num_cycles))
        silences_s = sample_s(on_off.off_s, stream(seed, "silences").random(num_cycles))
        ends_s = np.cumsum(bursts_s + silences_s)
        starts_s = ends_s - bursts_s - silences_s
        on_before_s = np.cumsum(bursts_s) - bursts_s  # total time in bursts before each burst
        first = max(int(np.searchsorted(starts_s, origin_s, side="right")) - 1, 0)
        on_at_origin_s = on_before_s[first] + min(origin_s - starts_s[first], bursts_s[first])
        wanted_s = on_at_origin_s + on_time_s
        if ends_s[-1] > origin_s and on_before_s[-1] > wanted_s[-1]:
            break
        num_cycles *= 2
    burst = np.searchsorted(on_before_s, wanted_s, side="right") - 1
    real: Float64 = starts_s[burst] + (wanted_s - on_before_s[burst]) - origin_s
    return np.maximum.accumulate(np.maximum(real, 0.0))


_SINE_STEPS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A rate profile that repeats. Raises ScenarioError for values out of range."""

    factors: tuple[float, ...]
    """Rates in equal parts of the period, relative to each other. They are scaled to average 1, so
    the mean rate over whole periods is kept."""
    period_s: float
    start_s: float = 0.0
    """Position in the period at which the run starts, in seconds."""
    name: str = "drift"

    def __post_init__(self) -> None:
        if not 0 < self.period_s < math.inf or not 0 <= self.start_s < math.inf:
            raise ScenarioError(
                f"drift over {self.period_s} s from {self.start_s} s; expected a period above 0 "
                "and a start of at least 0"
            )
        if not self.factors or not all(0 <= factor < math.inf for factor in self.factors):
            raise ScenarioError(f"drift factors {self.factors}; expected numbers of at least 0")
        if sum(self.factors) == 0:
            raise ScenarioError("all drift factors are 0: nothing would ever arrive")


def sine(amplitude: float, period_s: float, start_s: float = 0.0) -> Drift:
    """Return a rate that swings by ``amplitude`` around its mean; 0.4 is 40%.

    A period has 120 steps. Raises ScenarioError for an amplitude outside 0 to 1.
    """
    if not 0 <= amplitude <= 1:
        raise ScenarioError(f"drift amplitude is {amplitude}; expected 0 to 1")
    phase = 2 * math.pi * (np.arange(_SINE_STEPS) + 0.5) / _SINE_STEPS
    factors = tuple((1 + amplitude * np.sin(phase)).tolist())
    return Drift(factors=factors, period_s=period_s, start_s=start_s, name=f"{amplitude:.0%} swing")


def named_drift(name: str, start_s: float = 0.0) -> Drift:
    """Return a measured profile of profiles.yaml.

    Raises ScenarioError, listing the names, if there is none of that name.
    """
    profiles = _profiles()
    if name not in profiles:
        raise ScenarioError(f"unknown drift profile {name!r}; known: {', '.join(profiles)}")
    factors, period_s = profiles[name]
    return Drift(factors=factors, period_s=period_s, start_s=start_s, name=f"{name} profile")


def drifted(operational_s: Float64, drift: Drift) -> Float64:
    """Return real times of ``operational_s`` ``[n]``, by the inverse of the integrated rate."""
    step_s = drift.period_s / len(drift.factors)
    factors = np.array(drift.factors) / np.mean(drift.factors)
    # Operational time at the steps' ends. By the scaling, a period is as long on both clocks.
    done = np.concatenate(([0.0], np.cumsum(factors * step_s)))
    done[-1] = drift.period_s
    start_s = drift.start_s % drift.period_s
    start_step = min(int(start_s / step_s), len(factors) - 1)
    origin = done[start_step] + (start_s - start_step * step_s) * factors[start_step]
    periods, within = np.divmod(operational_s + origin, drift.period_s)
    step = np.minimum(np.searchsorted(done, within, side="right") - 1, len(factors) - 1)
    # Only by rounding can a time fall into a step of factor 0.
    in_step = (within - done[step]) / np.maximum(factors[step], 1e-12)
    real: Float64 = periods * drift.period_s + step * step_s + np.clip(in_step, 0, step_s) - start_s
    # Rounding must not change the order of arrivals.
    return np.maximum.accumulate(np.maximum(real, 0.0))


@lru_cache(maxsize=1)
def _profiles() -> dict[str, tuple[tuple[float, ...], float]]:
    text = Path(__file__).with_name("profiles.yaml").read_text(encoding="utf-8")
    blocks = yaml.safe_load(text)
    return {name: (tuple(b["factors"]), float(b["period_s"])) for name, b in blocks.items()}
