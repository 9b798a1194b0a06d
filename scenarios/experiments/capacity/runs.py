"""The runs of a capacity search: a first look at the scenario, then runs at any load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from scenarios.experiments.capacity.measure import RunFacts, measure
from scenarios.experiments.capacity.question import (
    SESSIONS,
    RunPlan,
    Variable,
    has_own_size,
    sizes,
)
from scenarios.experiments.capacity.search import Tally, Trial
from scenarios.experiments.points import Point, run_points, seeded_points, simulated
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError

_REQUESTS = 1_000
_OF_SATURATION = (0.12, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.2)
_IN_FLIGHT = (1, 4, 16, 64, 256)
_MOST_DOUBLINGS = 24
_KEPT_UP = 0.8  # share of the arrivals that leave in time, in runs that do not queue
_LEAST_RATE = 1e-6  # requests/s
_BUSY = 0.7  # share of saturation at which the requests in the system are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What is known before the search."""

    summary: dict[str, Any]
    source: str
    """The source of the requests."""
    notes: tuple[str, ...]
    levels: tuple[float, ...]
    """Loads to begin with."""
    saturation_level: float | None
    """Load at which the engines are estimated to saturate; None in a closed loop."""
    in_system: float
    """Requests in the system at a busy rate; 0 where it is not needed."""


def pilot(scenario: Scenario, variable: Variable) -> Pilot:
    """Simulate a short run. Raises `ScenarioError` if no request is served."""
    replicas = scenario.pool.replicas
    own = variable.value(scenario)
    if variable.closed_loop:
        result = _short(scenario, variable, own or replicas)
        levels = tuple(float(n * replicas) for n in _IN_FLIGHT)
        return _pilot(result, levels, None, 0.0)
    has_arrivals = scenario.workload.generator is None
    result = _short(scenario, variable, own or (None if has_arrivals else 1.0))
    counts, limit = result.summary["requests"], result.summary["saturation"]
    if not counts["finished"]:
        rejected = counts["reject_reasons"]
        why = f": {next(iter(rejected))}" if rejected else ""
        raise ScenarioError(f"no request of this workload is served{why}; there is no capacity")
    if limit is not None:
        saturation_per_s = limit["saturation_per_s"]
    else:  # the estimate does not know this scheduler's batches, or an engine's feature
        saturation_per_s = _overloaded_per_s(scenario, variable, result)
    in_system = 0.0
    if not has_own_size(scenario):
        busy = _short(scenario, variable, _BUSY * saturation_per_s)
        in_system = _BUSY * saturation_per_s * (busy.figure("e2e", "mean") or 0.0)
    limit_level = saturation_per_s / _requests_per_s(result, variable)
    levels = tuple(limit_level * share for share in _OF_SATURATION)
    return _pilot(result, levels, limit_level, in_system)


def _overloaded_per_s(scenario: Scenario, variable: Variable, result: RunResult) -> float:
    """Return the requests/s that leave short runs of ever more load, once they leave later than
    they come."""
    served = result.figure("request_throughput", "value") or 0.0
    per_level = _requests_per_s(result, variable)
    for _ in range(_MOST_DOUBLINGS):
        level = 2 * max(served, _LEAST_RATE) / per_level
        before, served = (
            served,
            _short(scenario, variable, level).figure("request_throughput", "value") or 0.0,
        )
        if served < _KEPT_UP * level * per_level or served <= before:
            break
    return max(served, _LEAST_RATE)


def _requests_per_s(result: RunResult, variable: Variable) -> float:
    """Return requests per second at a load of one, which differs from 1 if the load counts
    sessions."""
    session = result.log.table.session
    if variable is not SESSIONS or session is None:
        return 1.0
    return len(session) / len(set(session.tolist())) / 3600


def _short(scenario: Scenario, variable: Variable, level: float | None) -> RunResult:
    requests = None if has_own_size(scenario) else _REQUESTS
    if level is None:  # its own arrivals
        own = scenario.workload.model_copy(update=sizes(scenario, 1.0, requests))
        return simulate(scenario.model_copy(update={"workload": own}))
    return simulate(variable.at(scenario, level, **sizes(scenario, level, requests)))


def _pilot(
    result: RunResult,
    levels: tuple[float, ...],
    saturation_level: float | None,
    in_system: float,
) -> Pilot:
    table = result.log.table
    scaled = tuple(note for note in table.notes if not note.startswith(("rate scaled", "at most")))
    return Pilot(
        summary=result.summary,
        source=table.source,
        notes=(*result.build.notes, *scaled),
        levels=levels,
        saturation_level=saturation_level,
        in_system=in_system,
    )


@dataclass(kw_only=True)
class Runs:
    """A runner of trials, which keeps the facts of every run for the search and its curve."""

    scenario: Scenario
    plan: RunPlan
    workers: Workers
    reduce: Callable[..., RunFacts] = measure
    """Makes the facts of a result and the ``plan``."""
    progress: Progress | None = None
    task: str = "searching"
    facts: dict[Trial, RunFacts] = field(default_factory=dict)
    memo: dict[str, RunFacts] = field(default_factory=dict)
    """Facts by address, which runs of other scenarios may share."""

    def __call__(self, trials: Sequence[Trial]) -> list[Tally]:
        """Run all trials and return their tallies in order."""
        facts = run_points(
            [self.point(*trial) for trial in trials],
            partial(simulated, reduce=partial(self.reduce, plan=self.plan)),
            self.workers,
            memo=self.memo,
            progress=self.progress,
            task=self.task,
        )
        self.facts.update(zip(trials, facts, strict=True))
        return [one.tally for one in facts]

    def point(self, level: float, replication: int) -> Point:
        """Return the point of one run: at a load, with the seed of a replication."""
        workload = sizes(self.scenario, level, self.plan.requests(level))
        scenario = self.plan.variable.at(self.scenario, level, **workload)
        seed = scenario.seed + replication
        labels = {"level": level, "replication": replication}
        (point,) = seeded_points(scenario, [seed], labels)
        return point

    def other(self, **changes: Any) -> Runs:
        """Return runs with other fields; those with an equal plan share their results."""
        new = replace(self, facts={}, **changes)
        if new.plan != self.plan:
            new.memo = {}
        return new

    def of(self, level: float) -> list[RunFacts]:
        """Return the facts of a load, by replication."""
        return [self.facts[trial] for trial in sorted(self.facts) if trial[0] == level]
