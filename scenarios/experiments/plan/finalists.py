"""The ranked fleets in detail: the load that each carries, what binds there, and one engine
down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scenarios.experiments.capacity.binding import binding
from scenarios.experiments.capacity.measure import Row, curve
from scenarios.experiments.capacity.search import Found, search
from scenarios.experiments.plan.judge import Judge, Verdict
from scenarios.experiments.plan.search import Outcome, Search, rank_key
from scenarios.schema.plan import Target
from sim.books.metrics import TARGETS

_LOADS = (1.0, 1.08, 1.2, 1.4)
_MORE = (1.25, 1.5)
"""Multiples of a ranked fleet's units: what more money buys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A ranked candidate with its fewest units."""

    outcome: Outcome
    verdict: Verdict
    found: Found
    rows: list[Row]
    binding: dict[str, Any]
    degraded: dict[str, Verdict]
    """Role -> verdict with the spare engines, and one engine of that role down."""

    @property
    def carried(self) -> float:
        """The load at which it keeps the targets; if no limit was found, the highest load tried."""
        capacity = self.found.capacity
        return max(self.found.samples.levels) if capacity is None else capacity.level


def finalists(chosen: Search, judge: Judge) -> list[Finalist]:
    """Examine all ranked candidates of a search; those of equal cost are sorted by what they
    carry."""
    found = [_finalist(outcome, chosen, judge) for outcome in chosen.ranked]
    found.sort(
        key=lambda one: (rank_key(one.outcome)[:2], -one.carried, one.outcome.candidate.name)
    )
    chosen.ranked = [one.outcome for one in found]
    first = found[0].outcome
    if (
        chosen.spare is not None
        and rank_key(first, spare=1)[:2] == rank_key(chosen.spare, spare=1)[:2]
    ):
        chosen.spare = first  # of equals, the one that is recommended anyway
    return found


def _finalist(outcome: Outcome, chosen: Search, judge: Judge) -> Finalist:
    assert outcome.units is not None
    runs = judge.runs(outcome.candidate, outcome.units)
    verdict = judge.verdict(outcome.candidate, outcome.units)
    found = search(runs, [judge.level * share for share in _LOADS], judge.goal)
    rows = curve(found.samples, runs)
    at = found.near[-1] if found.capacity is None else found.capacity.level
    by_queue = found.limit == "stability"
    degraded = {}
    if outcome is chosen.spare and outcome.candidate.is_split:
        degraded = {
            engine.role: judge.judged(
                outcome.candidate.fleet(outcome.units, spare=1, down=engine.role)
            )
            for engine in outcome.candidate.engines
        }
    return Finalist(
        outcome=outcome,
        verdict=verdict,
        found=found,
        rows=rows,
        binding=binding(rows, at, targets_by_metric(judge.targets), by_queue=by_queue),
        degraded=degraded,
    )


def targets_by_metric(targets: Sequence[Target]) -> dict[str, float]:
    """Return metric -> the tightest time that any target has for it."""
    names = [name for name in TARGETS if any(t.metric == name for t in targets)]
    return {name: min(t.within_s for t in targets if t.metric == name) for name in names}


def front(chosen: Search, judge: Judge) -> None:
    """Simulate ranked fleets with more units too, once each, to show what more money would buy."""
    for outcome in chosen.ranked:
        assert outcome.units is not None
        for units in sorted({outcome.units + 1, *(math.ceil(outcome.units * m) for m in _MORE)}):
            if chosen.is_had(outcome.candidate, units):
                judge.first(outcome.candidate, units, looks=False)


_RELAXED_LOADS = (0.3, 0.5, 0.7, 0.85)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """What binds when no candidate passes, and what relaxes it."""

    constraint: str
    """``supply`` (availability, budget or most_replicas), ``latency``, ``memory``, ``targets``."""
    nearest: Outcome | None
    """The candidate that comes nearest."""
    without_limits: Outcome | None = None
    """For supply: the cheapest candidate if there were no limits, with its units."""
    load: float | None = None
    """For supply: the load that the nearest candidate carries with all units that are available."""


def relaxed(chosen: Search, judge: Judge) -> Relaxed:
    """Find what binds in a search that ranked no candidate, and what relaxes it."""
    outcomes = list(chosen.outcomes.values())
    built = [outcome for outcome in outcomes if outcome.bounds is not None]
    if not built:
        return Relaxed(constraint="memory", nearest=None)
    limited = [one for one in built if one.bounds is not None and one.bounds.refused is None]
    if not limited:
        nearest = min(built, key=lambda one: (_over(one, judge), one.candidate.name))
        return Relaxed(constraint="latency", nearest=nearest)
    free = Search(
        plan=chosen.plan.model_copy(update={"ranked": 1, "most_replicas": 10_000}),
        question=chosen.question,
        judge=judge,
        limited=False,
    )
    free.run([outcome.candidate for outcome in limited])
    if not free.ranked:
        tried = [one for one in free.outcomes.values() if one.tried is not None]
        tried.sort(key=lambda one: (-_kept(one, judge), one.candidate.name))
        return Relaxed(constraint="targets", nearest=tried[0] if tried else limited[0])
    found = free.ranked[0]
    own = chosen.outcomes[found.candidate.name]
    had = [one for one in limited if one.most >= 1]
    nearest = own if own.most >= 1 or not had else had[0]
    return Relaxed(
        constraint="supply",
        nearest=nearest,
        without_limits=found,
        load=_load_of(nearest, judge) if nearest.most >= 1 else None,
    )


def _kept(outcome: Outcome, judge: Judge) -> float:
    """Return the share of requests within the target that a candidate misses, with most units
    tried."""
    assert outcome.tried is not None
    verdict = judge.verdict_so_far(outcome.candidate, outcome.tried)
    return min((run.met[verdict.worst].share for run in verdict.runs), default=0.0)


def _over(outcome: Outcome, judge: Judge) -> float:
    """Return the worst ratio of a candidate's bounds to their targets."""
    assert outcome.bounds is not None
    pairs = zip(outcome.bounds.least_s, judge.targets, strict=True)
    return max(least / target.within_s for least, target in pairs)


def _load_of(outcome: Outcome, judge: Judge) -> float | None:
    """Return the load that all of a candidate's units carry; None if none is kept."""
    runs = judge.runs(outcome.candidate, outcome.most)
    goal = replace(judge.goal, least=min(judge.goal.least, 2), most=min(judge.goal.most, 2))
    found = search(runs, [judge.level * share for share in _RELAXED_LOADS], goal)
    return None if found.capacity is None else min(found.capacity.low, found.capacity.level)
