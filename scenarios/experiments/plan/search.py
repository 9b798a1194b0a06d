"""Search the cheapest fleets: candidates by their least cost, each with the fewest units.

More units of a candidate are assumed to do no worse than fewer, so the fewest that pass are found
between a number that fails and one that passes. A candidate is given up without a simulation only
if a proven bound rules out every fleet of it that would be cheap enough, and otherwise only if the
largest of those fleets has been simulated and fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from scenarios.build.builder import build
from scenarios.build.pools import Build
from scenarios.experiments.plan.bounds import Bounds, find_bounds
from scenarios.experiments.plan.candidates import Candidate
from scenarios.experiments.plan.judge import Judge, Verdict
from scenarios.experiments.plan.question import Question
from scenarios.schema.plan import PlanFile
from sim.errors import ScenarioError

_ALONE = 0.1
"""Mean requests per engine below which more engines change nothing."""
_AT_FIRST = 1.25  # times the fewest units by the bounds, where a search begins

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


@dataclass(kw_only=True)
class Search:
    """The search of a plan: `run` does it, ``outcomes`` holds all candidates by name."""

    plan: PlanFile
    question: Question
    judge: Judge
    limited: bool = True
    """Whether availability and budget apply; False when the search asks what would relax them."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ranked: list[Outcome] = field(default_factory=list)
    """The cheapest candidates that pass, each with its fewest units, cheapest first."""
    spare: Outcome | None = None
    """The candidate whose fleet with one more engine of each kind is cheapest."""

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Find the cheapest fleets among these candidates."""
        for candidate in candidates:
            self.outcomes[candidate.name] = self.bounded(candidate)
        open_ = [outcome for outcome in self.outcomes.values() if outcome.stage == "simulated"]
        for outcome in sorted(open_, key=least_key):
            self._settle(outcome)

    def consider(self, candidate: Candidate) -> Outcome:
        """Settle one more candidate, whatever others are still to come."""
        outcome = self.outcomes[candidate.name] = self.bounded(candidate)
        if outcome.stage == "simulated":
            self._settle(outcome)
        return outcome

    def bounded(self, candidate: Candidate) -> Outcome:
        """Return what is known of a candidate without a simulation."""
        try:
            built = build(candidate.scenario)
        except ScenarioError as error:
            return Outcome(candidate=candidate, stage="memory", why=str(error))
        question = self.question
        counted, targets = question.counted, question.targets
        bounds = find_bounds(candidate, built.parts, question.table, counted, targets)
        most, limit = self._supply(candidate)
        outcome = Outcome(
            candidate=candidate,
            stage="simulated",
            build=built,
            bounds=bounds,
            most=most,
            limit=limit,
        )
        if bounds.refused is not None:
            outcome.stage = "latency"
        elif bounds.units > most:
            outcome.stage = "supply"
        return outcome

    def _supply(self, candidate: Candidate) -> tuple[int, str]:
        """Return how many units are available, and what limits them."""
        limits = [(self.plan.most_replicas, "most_replicas")]
        if self.limited:
            for gpu, count in candidate.gpus_by_name(1).items():
                available = candidate.prices[gpu].available
                if available is not None:
                    limits.append((available // count, f"available {gpu}"))
            budget = self.plan.budget_usd_per_h
            if budget is not None and candidate.usd_per_h(1) > 0:
                limits.append((math.floor(budget / candidate.usd_per_h(1) + 1e-9), "budget"))
        return min(limits)

    def _settle(self, outcome: Outcome) -> None:
        """Simulate a candidate's fleets until it is ranked or given up."""
        assert outcome.bounds is not None
        cheap = self._most_units(outcome, lambda units: self._ranks(outcome, units))
        reserve = self._most_units(outcome, lambda units: self._spares_better(outcome, units))
        most = max(cheap, reserve)
        if most < outcome.bounds.units:
            outcome.stage = "cost"
            return
        units = self._fewest(outcome, most)
        if units is None:
            return
        outcome.units = units
        if units <= cheap:
            outcome.stage = "ranked"
            self.ranked = sorted([*self.ranked, outcome], key=rank_key)
            for beaten in self.ranked[self.plan.ranked :]:
                beaten.stage = "cost"
            del self.ranked[self.plan.ranked :]
        else:
            outcome.stage = "cost"
        if units <= reserve:
            self.spare = outcome

    def _most_units(self, outcome: Outcome, is_enough: Callable[[int], bool]) -> int:
        """Return the most units with which a fleet is still cheap enough; 0: none."""
        if is_enough(outcome.most):
            return outcome.most
        low, high = 0, outcome.most  # cost grows with units
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if is_enough(middle) else (low, middle)
        return low

    def _ranks(self, outcome: Outcome, units: int) -> bool:
        """Return whether a fleet would be among those ranked so far."""
        if len(self.ranked) < self.plan.ranked:
            return True
        return fleet_key(outcome.candidate, units) < rank_key(self.ranked[-1])

    def _spares_better(self, outcome: Outcome, units: int) -> bool:
        """Return whether a fleet with spare engines is available and cheaper than the best so
        far."""
        candidate = outcome.candidate
        if not self.is_had(candidate, units, spare=1):
            return False
        best = self.spare
        return best is None or fleet_key(candidate, units, spare=1) < rank_key(best, spare=1)

    def is_had(self, candidate: Candidate, units: int, *, spare: int = 0) -> bool:
        """Return whether availability and budget, if they apply, allow a fleet."""
        if not self.limited:
            return True
        budget = self.plan.budget_usd_per_h
        if budget is not None and candidate.usd_per_h(units, spare=spare) > budget * (1 + 1e-9):
            return False
        for gpu, count in candidate.gpus_by_name(units, spare=spare).items():
            available = candidate.prices[gpu].available
            if available is not None and count > available:
                return False
        return True

    def _fewest(self, outcome: Outcome, most: int) -> int | None:
        """Return the fewest units that pass, up to ``most``; None if not even those do.

        First find the fewest units whose first run passes, which costs little; then, from there,
        the fewest whose runs all pass.
        """
        assert outcome.bounds is not None
        candidate, fails = outcome.candidate, outcome.bounds.units - 1
        start = max(math.ceil(_AT_FIRST * outcome.bounds.units), fails + 1)
        for judged in (self.judge.first, self.judge.verdict):
            found = self._bracket(outcome, partial(judged, candidate), fails, start, most)
            if found is None:
                return None
            start, fails = found, found - 1
        return start

    def _bracket(
        self,
        outcome: Outcome,
        judged: Callable[[int], Verdict],
        fails: int,
        start: int,
        most: int,
    ) -> int | None:
        """Return the fewest units that pass, above ``fails``, which do not; None: none up to
        ``most``."""
        at, step, passes = min(start, most), 1, most + 1
        is_known = False  # whether `fails` was simulated, not bounded
        while passes - fails > 1:
            verdict = judged(at)
            if verdict.kept:
                passes = at
            else:
                fails, outcome.tried, is_known = at, at, True
                outcome.alone = self._is_alone(outcome.candidate, at, verdict)
                if passes > most and outcome.alone:
                    return None
            if passes > most:
                at = min(at + max(step, _missing(at, verdict)), most)
            else:
                at = (fails + passes) // 2 if is_known else max(passes - step, fails + 1)
            step *= 2
        return passes if passes <= most else None

    def _is_alone(self, candidate: Candidate, units: int, verdict: Verdict) -> bool:
        """Return whether requests already have engines to themselves, so that more change
        nothing."""
        if not verdict.runs:
            return False
        e2e = verdict.runs[0].latency_s["e2e"].get("mean", math.inf)
        engines = units * min(engine.count for engine in candidate.engines)
        load = self.question.level
        present = load if self.question.plan.variable.closed_loop else load * e2e
        return present / engines < _ALONE


def _missing(units: int, verdict: Verdict) -> int:
    """Return the units to add where requests come faster than they leave."""
    return math.floor(units * (1 / max(verdict.finished_share, 0.1) - 1) * 0.8)
