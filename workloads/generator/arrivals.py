"""When requests, or sessions, arrive: a process, whose it is, and how its rate changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.clients import Clients, client_arrivals
from workloads.generator.drift import Drift, drifted
from workloads.generator.gaps import ALL_AT_ONCE, LEAST_CV, MOST_CV, PROCESSES, unit_gaps
from workloads.generator.on_off import OnOff, with_silences
from workloads.generator.streams import stream

LATEST_ARRIVAL_NS = 2**62
"""146 years: the latest arrival allowed, which leaves int64 room for the run behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An arrival process. Raises ScenarioError for values it cannot have."""

    process: str = "poisson"
    """``poisson``, ``gamma`` and ``weibull`` (gaps of the given ``cv``), ``constant`` or
    ``all-at-once``."""
    requests_per_s: float | None = None
    """Mean rate; None for ``all-at-once``, which has none."""
    cv: float = 1.0
    """Standard deviation over mean of the gaps: 1 is Poisson, above is bursty."""
    clients: Clients | None = None
    """Several clients, each a process with a CV of its own, which then stands for ``cv``."""
    on_off: OnOff | None = None
    """Arrivals in bursts only."""
    drift: Drift | None = None
    """A rate that changes. With ``on_off``, bursts and silences follow faster where it is high."""

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise ScenarioError(
                f"arrival process {self.process!r} is unknown; known: {', '.join(PROCESSES)}"
            )
        if self.process == ALL_AT_ONCE:
            if self.requests_per_s is not None:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals have no requests_per_s")
            if self.clients or self.on_off or self.drift:
                raise ScenarioError(f"{ALL_AT_ONCE} arrivals have no clients, bursts or drift")
        elif self.requests_per_s is None or not 0 < self.requests_per_s < math.inf:
            raise ScenarioError(
                f"requests_per_s is {self.requests_per_s}; {self.process} arrivals need a number "
                "above 0"
            )
        if not LEAST_CV <= self.cv <= MOST_CV:
            raise ScenarioError(
                f"cv of arrivals is {self.cv}; expected a number from {LEAST_CV:g} to {MOST_CV:g}"
            )


def arrival_times_s(arrivals: Arrivals, n: int, seed: int) -> tuple[Float64, Int64 | None]:
    """``[n]`` times in seconds, non-decreasing, and the client of each where there are clients.

    A single random process is started at 0, so the first request comes one gap later; with
    constant spacing it comes at 0. Gaps are drawn in order at a rate of 1/s and then scaled: the
    first m times do not depend on ``n``, and rates are compared on the same gaps.
    """
    client = None
    if arrivals.clients is None:
        gaps = unit_gaps(arrivals.process, stream(seed, "arrivals"), n, arrivals.cv)
        unit = np.cumsum(gaps)
    else:
        unit, client = client_arrivals(arrivals.clients, arrivals.process, n, seed)
    times_s: Float64 = unit / (arrivals.requests_per_s or 1.0)
    if arrivals.on_off is not None:
        times_s = with_silences(times_s, arrivals.on_off, seed)
    if arrivals.drift is not None:
        times_s = drifted(times_s, arrivals.drift)
    return times_s, client
