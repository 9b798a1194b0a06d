"""What a plan keeps of a run, and of a short look at a run that can no longer pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from scenarios.experiments.capacity.measure import RunFacts, counted_requests, measure
from scenarios.experiments.capacity.question import RunPlan, sizes
from scenarios.experiments.capacity.samples import Point, Tally
from scenarios.experiments.plan.targets import Met, met_by
from scenarios.run.replications import with_seed
from scenarios.run.result import RunResult
from scenarios.run.simulate import run_many
from scenarios.schema import Scenario
from scenarios.schema.plan import Target
from sim.recorder import UNSET

_CHANCE = 2.0  # standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """The facts of one run of a fleet."""

    facts: RunFacts
    met: tuple[Met, ...]
    """Results target by target."""
    simulated: int
    """Requests sent, counted or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The misses of a run that was stopped early."""

    misses: tuple[int, ...]
    """Target by target: requests that count and surely miss it, whatever comes later."""
    simulated: int
    sent: int
    """Requests that count and had arrived."""
    finished: int
    """Those of them that finished."""


def measure_fleet(result: RunResult, plan: RunPlan, targets: Sequence[Target]) -> FleetFacts:
    """Reduce a whole run; the facts' tally is that of the worst target, see `by_worst`."""
    counted = counted_requests(result.metrics, plan.counting(plan.level_of(result.scenario)))
    met = met_by(result, counted, targets)
    facts = measure(result, plan)
    tally = by_worst(facts.tally, met, targets, plan.attainment)
    if not plan.variable.closed_loop:
        error = _chance(facts)
        tally = replace(tally, growth_error=max(tally.growth_error, error))
    return FleetFacts(
        facts=replace(facts, tally=tally),
        met=met,
        simulated=len(result.log.table),
    )


def _chance(facts: RunFacts) -> float:
    """Return the growth of the number in the system that chance allows in a run, per arrival.

    A steady number scatters at least like a Poisson variable, by the root of its mean.
    """
    present = (facts.offered_per_s or 0.0) * facts.latency_s["e2e"].get("mean", 0.0)
    return _CHANCE * math.sqrt(2 * present) / max(facts.requests, 1)


def by_worst(
    tally: Tally, met: Sequence[Met], targets: Sequence[Target], attainment: float
) -> Tally:
    """Return a tally that attains ``attainment`` exactly when its worst target is exactly met.

    It counts the misses of the target that uses most of its allowance, scaled as if all targets had
    the same share.
    """
    used = [(1 - one.share) / (1 - t.share) for one, t in zip(met, targets, strict=True)]
    worst = int(np.argmax(used))
    own, target = met[worst], targets[worst]
    scale = (1 - attainment) / (1 - target.share) * sum(tally.arrived) / max(sum(own.arrived), 1)
    missed = [(a - g) * scale for a, g in zip(own.arrived, own.good, strict=True)]
    good = [max(a - round(m), 0) for a, m in zip(tally.arrived, missed, strict=True)]
    return replace(tally, good=tuple(good))


def look(result: RunResult, plan: RunPlan, targets: Sequence[Target]) -> Look:
    """Reduce a run that stopped at a horizon: a fleet that has missed enough by then has failed.

    What happens up to the horizon is what happens in the whole run.
    """
    log, metrics = result.log, result.metrics
    table = log.table
    counting = plan.counting(plan.level_of(result.scenario))
    arrival_ns = np.frombuffer(log.requests.arrival_ns, np.int64)
    sent = (arrival_ns != UNSET) & (arrival_ns <= log.end_ns)
    counts = np.zeros(len(table), bool)
    counts[counting.skip : len(table) - counting.skip_end] = True
    counts &= table.arrival_ns >= round(result.scenario.warmup_s * 1e9)
    counts &= sent
    waited_s = (log.end_ns - arrival_ns) / 1e9
    misses = []
    for target in targets:
        own = counts
        if target.of_class is not None and table.class_index is not None:
            own = counts & (table.class_index == table.class_names.index(target.of_class))
        values = getattr(metrics, f"{target.metric}_s")
        late = values > target.within_s
        if target.metric in ("ttft", "e2e"):  # not finished yet, but already too late
            late |= np.isnan(values) & ~metrics.finished & (waited_s > target.within_s)
        misses.append(int((own & late).sum()))
    return Look(
        misses=tuple(misses),
        simulated=int(sent.sum()),
        sent=int(counts.sum()),
        finished=int((counts & metrics.finished).sum()),
    )


@dataclass(kw_only=True)
class Runs:
    """A runner of one fleet at any load, for `scenarios.experiments.capacity.search` and its
    curve."""

    scenario: Scenario
    plan: RunPlan
    targets: tuple[Target, ...]
    jobs: int | None
    told: Callable[[int], None]
    """Called with the number of requests that were simulated."""
    done: dict[Point, FleetFacts] = field(default_factory=dict)

    def __call__(self, points: Sequence[Point]) -> list[Tally]:
        """Run all points and return their tallies in order."""
        new = [point for point in points if point not in self.done]
        reduce = partial(measure_fleet, plan=self.plan, targets=self.targets)
        found = run_many([self.scenario_at(*p) for p in new], reduce, jobs=self.jobs)
        self.done.update(zip(new, found, strict=True))
        self.told(sum(one.simulated for one in found))
        return [self.done[point].facts.tally for point in points]

    def scenario_at(self, level: float, replication: int) -> Scenario:
        """Return the scenario of one run: at a load, with the seed of a replication."""
        workload = sizes(self.scenario, level, self.plan.requests(level))
        scenario = self.plan.variable.at(self.scenario, level, **workload)
        return with_seed(scenario, scenario.seed + replication)

    def of(self, level: float) -> list[RunFacts]:
        """Return the facts of a load, by replication."""
        return [self.done[point].facts for point in sorted(self.done) if point[0] == level]

    def look(self, level: float, horizon_s: float) -> Look:
        """Simulate the first run at a load up to a horizon, in seconds."""
        scenario = self.scenario_at(level, 0).model_copy(update={"horizon_s": horizon_s})
        reduce = partial(look, plan=self.plan, targets=self.targets)
        found = run_many([scenario], reduce, jobs=1)[0]
        self.told(found.simulated)
        return found
