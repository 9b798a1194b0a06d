"""The outcome of each candidate of a plan, and the order of fleets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scenarios.build.pools import Build
from scenarios.experiments.plan.bounds import Bounds
from scenarios.experiments.plan.candidates import Candidate

Stage = Literal["memory", "latency", "supply", "cost", "simulated", "ranked"]
"""Stage at which a candidate was given up; ``supply``: availability, budget or most_replicas."""


@dataclass(kw_only=True)
class Outcome:
    """The outcome of one candidate."""

    candidate: Candidate
    stage: Stage
    build: Build | None = None
    """Its pools, built; None if they cannot be, as when the model does not fit."""
    bounds: Bounds | None = None
    most: int = 0
    """Units that are available."""
    limit: str = ""
    """What limits the available units."""
    units: int | None = None
    """The fewest units that pass, if they were found."""
    tried: int | None = None
    """The most units that were found not to pass."""
    alone: bool = False
    """Whether it fails although its engines hold hardly more than one request at a time."""
    why: str = ""
    """Why it cannot be built, in a few words."""

    @property
    def is_simulated(self) -> bool:
        """Whether any of its fleets was simulated."""
        return self.units is not None or self.tried is not None

    @property
    def least_usd_per_h(self) -> float | None:
        """The least cost of a fleet that could do the work, by the bounds, in USD per hour."""
        return None if self.bounds is None else self.candidate.usd_per_h(self.bounds.units)


Key = tuple[float, int, str]


def fleet_key(candidate: Candidate, units: int, *, spare: int = 0) -> Key:
    """Return a sort key of fleets: cheapest first, then fewest GPUs, then by name."""
    gpus = sum(candidate.gpus_by_name(units, spare=spare).values())
    return (round(candidate.usd_per_h(units, spare=spare), 9), gpus, candidate.name)


def rank_key(outcome: Outcome, *, spare: int = 0) -> Key:
    """Return the `fleet_key` of the fewest units that pass, with ``spare`` more engines of each
    kind."""
    assert outcome.units is not None
    return fleet_key(outcome.candidate, outcome.units, spare=spare)


def least_key(outcome: Outcome) -> tuple[float, str]:
    """Return a sort key by the least possible cost, then by name."""
    return (round(outcome.least_usd_per_h or 0.0, 9), outcome.candidate.name)
