"""The runs that a search asks for, done in parallel; the facts of every run are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scenarios.experiments.capacity.measure import RunFacts, measure
from scenarios.experiments.capacity.question import RunPlan, sizes
from scenarios.experiments.capacity.samples import Point, Tally
from scenarios.run.replications import with_seed
from scenarios.run.simulate import run_many
from scenarios.schema import Scenario


@dataclass(kw_only=True)
class Runs:
    """A runner of a search's points."""

    scenario: Scenario
    plan: RunPlan
    jobs: int | None = None
    progress: Callable[[int, int], None] | None = None
    facts: dict[Point, RunFacts] = field(default_factory=dict)

    def __call__(self, points: Sequence[Point]) -> list[Tally]:
        """Run all points and return their tallies in order."""
        facts = run_many(
            [self.scenario_at(*point) for point in points],
            partial(measure, plan=self.plan),
            jobs=self.jobs,
            progress=self.progress,
        )
        self.facts.update(zip(points, facts, strict=True))
        return [self.facts[point].tally for point in points]

    def scenario_at(self, level: float, replication: int) -> Scenario:
        """Return the scenario of one run: at a load, with the seed of a replication."""
        workload = sizes(self.scenario, level, self.plan.requests(level))
        scenario = self.plan.variable.at(self.scenario, level, **workload)
        return with_seed(scenario, scenario.seed + replication).model_copy(update={"bands": False})

    def slower(self) -> Runs:
        """Return the same runs, each repeated with a slower GPU and with a slower host."""
        return replace(self, plan=replace(self.plan, slower=True), facts={})

    def of(self, level: float) -> list[RunFacts]:
        """Return the facts of a load, by replication."""
        return [self.facts[point] for point in sorted(self.facts) if point[0] == level]
