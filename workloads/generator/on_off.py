"""Bursts and silences: a source that is either on, at a constant mean rate, or off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64
from sim.errors import ScenarioError
from workloads.generator.durations import Durations, mean_s, sample_s
from workloads.generator.streams import stream

_BURN_IN_CYCLES = 50
"""Time 0 lies this many cycles into the process, so that it may be in a burst or a silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """How long bursts and silences last. Raises ScenarioError for values it cannot have."""

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
    """Real times of ``operational_s`` ``[n]``, in order, of a process of constant mean rate.

    All arrivals fall into bursts, at a rate as much higher as keeps the mean. Bursts and silences
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
        on_before_s = np.cumsum(bursts_s) - bursts_s  # time in bursts before each burst
        first = max(int(np.searchsorted(starts_s, origin_s, side="right")) - 1, 0)
        on_at_origin_s = on_before_s[first] + min(origin_s - starts_s[first], bursts_s[first])
        wanted_s = on_at_origin_s + on_time_s
        if ends_s[-1] > origin_s and on_before_s[-1] > wanted_s[-1]:
            break
        num_cycles *= 2
    burst = np.searchsorted(on_before_s, wanted_s, side="right") - 1
    real: Float64 = starts_s[burst] + (wanted_s - on_before_s[burst]) - origin_s
    return np.maximum.accumulate(np.maximum(real, 0.0))
