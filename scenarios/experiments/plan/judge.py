"""Whether a fleet meets the targets at a load: simulated with its real router, and judged once.

A fleet passes if every one of its runs meets every target and its queue does not grow. The runs
differ only by their seeds, so with ``k`` runs a further one is the worst of all ``k + 1`` with a
chance of one in ``k + 1``: 19 runs that pass make it one in 20, whatever the distribution. A
recorded trace has only one run; its tenths give what a further one is likely to do, by Student's
prediction bound. One run below a target fails a fleet, so the other runs are skipped, as is the
rest of a run that has already missed enough: what is skipped changes no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from scenarios.experiments.capacity.measure import RunFacts
from scenarios.experiments.capacity.question import RunPlan
from scenarios.experiments.capacity.runs import Runs
from scenarios.experiments.capacity.search import Goal, Samples
from scenarios.experiments.plan.candidates import Candidate
from scenarios.experiments.plan.targets import Look, look, measure_fleet
from scenarios.experiments.points import seeded_points, simulated
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from scenarios.schema import Scenario
from scenarios.schema.plan import Target

_FEW = 4  # runs that are done first, before all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one fleet at the load that is planned for."""

    kept: bool
    runs: tuple[RunFacts, ...]
    """The fleet's runs; empty if a look at the first was enough."""
    worst: int
    """The target that is nearest to being missed, or that is missed."""
    lowest: tuple[float, ...]
    """Target by target: the least share of any run; for a recorded trace, of another like it."""
    why: str
    """``share``: a run missed a target; ``queue``: it grows; ``confidence``: the bound misses."""
    finished_share: float
    """Share of the sent requests that finished; a hint of how far off a hopeless fleet is."""


@dataclass(kw_only=True)
class Judge:
    """A judge of fleets at one load, which simulates each fleet once."""

    level: float
    plan: RunPlan
    targets: tuple[Target, ...]
    confidence: float
    replications: int
    look_s: float | None
    """Time at which a first run is checked early; None: never."""
    allowed: tuple[int, ...]
    """Target by target: requests of a run that may miss it."""
    workers: Workers
    progress: Progress | None = None
    verdicts: dict[tuple[str, int], Verdict] = field(default_factory=dict)
    firsts: dict[tuple[str, int], Verdict] = field(default_factory=dict)
    _runs: dict[tuple[str, int], Runs] = field(default_factory=dict)
    _facts: dict[str, RunFacts] = field(default_factory=dict)
    """Facts of every run by its address, whatever the fleet."""
    _looked_at: int = 0
    """Requests simulated in looks at the beginning of a run."""

    def verdict(self, candidate: Candidate, units: int) -> Verdict:
        """Return the verdict on a fleet of this many units."""
        key = (candidate.name, units)
        if key not in self.verdicts:
            first = self.first(candidate, units)
            if first.kept:
                stages = {min(_FEW, self.replications), self.replications}
                first = self._of_runs(self.runs(candidate, units), sorted(stages))
            self.verdicts[key] = first
        return self.verdicts[key]

    def first(self, candidate: Candidate, units: int, *, looks: bool = True) -> Verdict:
        """Return the verdict of a fleet's first run: failing it is final, passing it is not.

        ``looks`` says whether a hopeless run may be stopped.
        """
        key = (candidate.name, units)
        if key in self.verdicts:
            return self.verdicts[key]
        if key not in self.firsts or not (looks or self.firsts[key].runs):
            runs = self.runs(candidate, units)
            hopeless = self._looked(runs) if looks else None
            self.firsts[key] = hopeless or self._of_runs(runs, (1,))
        return self.firsts[key]

    def verdict_so_far(self, candidate: Candidate, units: int) -> Verdict:
        """Return the verdict on a fleet that was judged, by its first run or by all."""
        return (self.firsts | self.verdicts)[candidate.name, units]

    def runs(self, candidate: Candidate, units: int) -> Runs:
        """Return the runner of this fleet, with everything that it has run."""
        key = (candidate.name, units)
        if key not in self._runs:
            name = f"{units:,} x {candidate.name}"
            self._runs[key] = self.runs_of(candidate.fleet(units), name)
        return self._runs[key]

    def runs_of(self, scenario: Scenario, name: str) -> Runs:
        """Return a new runner of any fleet, which is called ``name`` while it runs."""
        return Runs(
            scenario=scenario,
            plan=self.plan,
            workers=self.workers,
            reduce=partial(measure_fleet, targets=self.targets),
            progress=self.progress,
            task=f"simulating {name}",
            memo=self._facts,
        )

    def judged(self, scenario: Scenario) -> Verdict:
        """Return the verdict on any fleet, without keeping it."""
        runs = self.runs_of(scenario, "with an engine down")
        return self._of_runs(runs, sorted({1, _FEW, self.replications}))

    @property
    def simulated(self) -> int:
        """Requests simulated, over all runs so far."""
        return self._looked_at + sum(one.simulated for one in self._facts.values())

    @property
    def goal(self) -> Goal:
        """The goal of a search for the load that a fleet carries."""
        fixed = self.plan.fixed
        return Goal(
            attainment=self.plan.attainment,
            precision=0.05,
            integer=self.plan.variable.closed_loop,
            queue_may_grow=self.plan.variable.closed_loop,
            units=self.plan.units,
            least=1 if fixed else 2,
            most=1 if fixed else 2,
        )

    def _looked(self, runs: Runs) -> Verdict | None:
        """Return a verdict from the beginning of the first run, if that is enough."""
        if self.look_s is None:
            return None
        early = self._look(runs, self.look_s)
        over = [m - a for m, a in zip(early.misses, self.allowed, strict=True)]
        if max(over) <= 0:
            return None
        return Verdict(
            kept=False,
            runs=(),
            worst=int(np.argmax(over)),
            lowest=(),
            why="share",
            finished_share=early.finished / max(early.sent, 1),
        )

    def _look(self, runs: Runs, horizon_s: float) -> Look:
        """Simulate the first run up to a horizon, in this process."""
        if self.progress is not None:
            self.progress(0, 1, task=runs.task)
        first = runs.point(self.level, 0).scenario
        cut = first.model_copy(update={"horizon_s": horizon_s})
        (point,) = seeded_points(cut, [cut.seed], {"level": self.level})
        early = simulated(point, reduce=partial(look, plan=self.plan, targets=self.targets))
        self._looked_at += early.simulated
        return early

    def _of_runs(self, runs: Runs, stages: Sequence[int]) -> Verdict:
        """Judge by the first runs, stage by stage; one run below a target is enough to fail."""
        samples = Samples(goal=self.goal, run=runs)
        done: tuple[RunFacts, ...] = ()
        for replications in stages:
            samples.add([self.level], replications)
            done = tuple(runs.facts[self.level, r] for r in range(replications))
            lowest = [min(run.met[i].share for run in done) for i in range(len(self.targets))]
            worst, room = self._worst(lowest)
            if room < -1e-9:
                return self._verdict(done, lowest, worst, "share")
            if not samples.is_stable(self.level):
                return self._verdict(done, lowest, worst, "queue")
        if self.plan.fixed:
            lowest = [self._likely(done[0], i) for i in range(len(self.targets))]
            worst, room = self._worst(lowest)
        return self._verdict(done, lowest, worst, "" if room >= -1e-9 else "confidence")

    def _worst(self, shares: Sequence[float]) -> tuple[int, float]:
        """Return the target with the least room, and that room as a share of its allowed misses."""
        room = [
            (share - target.share) / (1 - target.share)
            for share, target in zip(shares, self.targets, strict=True)
        ]
        worst = int(np.argmin(room))
        return worst, room[worst]

    def _likely(self, run: RunFacts, target: int) -> float:
        met = run.met[target]
        return next_share(met.good, met.arrived, self.confidence)

    def _verdict(
        self, done: tuple[RunFacts, ...], lowest: Sequence[float], worst: int, why: str
    ) -> Verdict:
        return Verdict(
            kept=not why,
            runs=done,
            worst=worst,
            lowest=tuple(lowest),
            why=why,
            finished_share=1.0,
        )


def next_share(good: Sequence[int], arrived: Sequence[int], confidence: float) -> float:
    """Return the least share of good requests in another trace like this one, with a confidence.

    ``good`` and ``arrived`` are requests by stretch of the trace, taken as independent. The bound
    is Student's prediction interval: the pooled share less the quantile times the standard
    deviation of the difference between two such traces.
    """
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    kept, count = np.array(good, np.float64), np.array(arrived, np.float64)
    share = float(kept.sum() / max(count.sum(), 1.0))
    scatter = (kept - share * count) / max(count.mean(), 1.0)
    error = float(scatter.std(ddof=1)) / math.sqrt(len(kept))
    quantile = float(stdtrit(len(kept) - 1, confidence))
    return share - quantile * error * math.sqrt(2)
