"""Runs one fleet of a plan at any load and seed, and keeps what each run left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from scenarios.capacity.measure import RunFacts
from scenarios.capacity.plan import RunPlan, sizes
from scenarios.capacity.samples import Point, Tally
from scenarios.many import run_many
from scenarios.plan.measure import FleetFacts, Look, look, measure_fleet
from scenarios.replications import with_seed
from scenarios.schema import Scenario
from scenarios.schema.plan import Target


@dataclass(kw_only=True)
class Runs:
    """Runs one fleet at any load; `scenarios.capacity.search` and its curve ask for this."""

    scenario: Scenario
    plan: RunPlan
    targets: tuple[Target, ...]
    jobs: int | None
    told: Callable[[int], None]
    """Called with the number of requests that were simulated."""
    done: dict[Point, FleetFacts] = field(default_factory=dict)

    def __call__(self, points: Sequence[Point]) -> list[Tally]:
        """The tallies of all points, in order."""
        new = [point for point in points if point not in self.done]
        reduce = partial(measure_fleet, plan=self.plan, targets=self.targets)
        found = run_many([self.scenario_at(*p) for p in new], reduce, jobs=self.jobs)
        self.done.update(zip(new, found, strict=True))
        self.told(sum(one.simulated for one in found))
        return [self.done[point].facts.tally for point in points]

    def scenario_at(self, level: float, replication: int) -> Scenario:
        """One run."""
        workload = sizes(self.scenario, level, self.plan.requests(level))
        scenario = self.plan.variable.at(self.scenario, level, **workload)
        return with_seed(scenario, scenario.seed + replication)

    def of(self, level: float) -> list[RunFacts]:
        """The facts of a load, by replication."""
        return [self.done[point].facts for point in sorted(self.done) if point[0] == level]

    def look(self, level: float, horizon_s: float) -> Look:
        """The first run at a load, up to a time."""
        scenario = self.scenario_at(level, 0).model_copy(update={"horizon_s": horizon_s})
        reduce = partial(look, plan=self.plan, targets=self.targets)
        found = run_many([scenario], reduce, jobs=1)[0]
        self.told(found.simulated)
        return found
