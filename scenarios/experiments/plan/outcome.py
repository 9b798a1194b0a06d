"""What became of a candidate of a plan, and how fleets are ordered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scenarios.build.built import Build
from scenarios.experiments.plan.bounds import Bounds
from scenarios.experiments.plan.candidates import Candidate

Stage = Literal["memory", "latency", "supply", "cost", "simulated", "ranked"]
"""Where a candidate was given up; ``supply``: availability, budget or most_replicas."""


@dataclass(kw_only=True)
class Outcome:
    """What became of a candidate."""

    candidate: Candidate
    stage: Stage
    parts: tuple[Build, ...] = ()
    """Its pools, built; none where it does not fit."""
    bounds: Bounds | None = None
    most: int = 0
    """Units that can be had."""
    limit: str = ""
    """What limits them."""
    units: int | None = None
    """The fewest that pass, where they were found."""
    tried: int | None = None
    """The most units that were found not to pass."""
    alone: bool = False
    """Whether it does not pass although its engines have hardly more than a request at a time."""
    why: str = ""
    """In a few words, where it cannot be built."""

    @property
    def is_simulated(self) -> bool:
        """Whether any fleet of it was."""
        return self.units is not None or self.tried is not None

    @property
    def least_usd_per_h(self) -> float | None:
        """What a fleet costs at least that could do the work, by the bounds."""
        return None if self.bounds is None else self.candidate.usd_per_h(self.bounds.units)


Key = tuple[float, int, str]


def fleet_key(candidate: Candidate, units: int, *, spare: int = 0) -> Key:
    """Orders fleets: cheapest first; of equal cost the fewest GPUs, then by name."""
    gpus = sum(candidate.gpus_by_name(units, spare=spare).values())
    return (round(candidate.usd_per_h(units, spare=spare), 9), gpus, candidate.name)


def rank_key(outcome: Outcome, *, spare: int = 0) -> Key:
    """The same of the fewest units that pass, with so many engines more of each kind."""
    assert outcome.units is not None
    return fleet_key(outcome.candidate, outcome.units, spare=spare)


def least_key(outcome: Outcome) -> tuple[float, str]:
    """What it must cost at least; by name where that is equal."""
    return (round(outcome.least_usd_per_h or 0.0, 9), outcome.candidate.name)
