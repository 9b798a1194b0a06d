"""A mean rate that changes over time, the same for any arrival process, by a change of time.

A process of constant mean rate is drawn on an operational clock, which runs fast where the rate is
high; its times are mapped to real time by the inverse of the integrated rate. So the gaps of the
process are the same whatever the profile, and a profile of factors 1 changes nothing.
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

_SINE_STEPS = 120

# libyaml's loader is about ten times faster; it is missing from some builds of PyYAML.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A rate profile that repeats. Raises ScenarioError for values it cannot have."""

    factors: tuple[float, ...]
    """The rate in equal parts of the period, relative to each other: they are scaled to average 1,
    so the mean rate over whole periods stays what it is."""
    period_s: float
    start_s: float = 0.0
    """Where in the period the run starts."""
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
    """A rate that swings by ``amplitude`` (0.4: 40 %) around its mean, in 120 steps a period."""
    if not 0 <= amplitude <= 1:
        raise ScenarioError(f"drift amplitude is {amplitude}; expected 0 to 1")
    phase = 2 * math.pi * (np.arange(_SINE_STEPS) + 0.5) / _SINE_STEPS
    factors = tuple((1 + amplitude * np.sin(phase)).tolist())
    return Drift(factors=factors, period_s=period_s, start_s=start_s, name=f"{amplitude:.0%} swing")


def named_drift(name: str, start_s: float = 0.0) -> Drift:
    """A measured profile of profiles.yaml. Raises ScenarioError, listing them, if there is none."""
    profiles = _profiles()
    if name not in profiles:
        raise ScenarioError(f"unknown drift profile {name!r}; known: {', '.join(profiles)}")
    factors, period_s = profiles[name]
    return Drift(factors=factors, period_s=period_s, start_s=start_s, name=f"{name} profile")


def drifted(operational_s: Float64, drift: Drift) -> Float64:
    """Real times of ``operational_s`` ``[n]``: the inverse of the integrated rate."""
    step_s = drift.period_s / len(drift.factors)
    factors = np.array(drift.factors) / np.mean(drift.factors)
    # Operational time at the steps' ends; over a whole period it is the period, by the scaling.
    done = np.concatenate(([0.0], np.cumsum(factors * step_s)))
    done[-1] = drift.period_s
    start_s = drift.start_s % drift.period_s
    start_step = min(int(start_s / step_s), len(factors) - 1)
    origin = done[start_step] + (start_s - start_step * step_s) * factors[start_step]
    periods, within = np.divmod(operational_s + origin, drift.period_s)
    step = np.minimum(np.searchsorted(done, within, side="right") - 1, len(factors) - 1)
    # Nothing falls into a step of factor 0, but for rounding.
    in_step = (within - done[step]) / np.maximum(factors[step], 1e-12)
    real: Float64 = periods * drift.period_s + step * step_s + np.clip(in_step, 0, step_s) - start_s
    # Rounding must not put an arrival before the one it follows.
    return np.maximum.accumulate(np.maximum(real, 0.0))


@lru_cache(maxsize=1)
def _profiles() -> dict[str, tuple[tuple[float, ...], float]]:
    text = Path(__file__).with_name("profiles.yaml").read_text(encoding="utf-8")
    blocks = yaml.load(text, Loader=_LOADER)
    return {name: (tuple(b["factors"]), float(b["period_s"])) for name, b in blocks.items()}
