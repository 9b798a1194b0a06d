"""Why no fleet meets the targets, and what would have to give: simulated, not guessed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scenarios.capacity.search import search
from scenarios.plan.judge import Judge
from scenarios.plan.outcome import Outcome
from scenarios.plan.search import Search

_LOADS = (0.3, 0.5, 0.7, 0.85)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """What binds, and what relaxes it."""

    constraint: str
    """``supply`` (availability, budget or most_replicas), ``latency``, ``memory``, ``targets``."""
    nearest: Outcome | None
    """The candidate that comes nearest."""
    without_limits: Outcome | None = None
    """Of supply: the cheapest candidate if there were no limits, with its units."""
    load: float | None = None
    """Of supply: the load that the nearest candidate carries with all units that can be had."""


def relaxed(chosen: Search, judge: Judge) -> Relaxed:
    """Of a search that ranked no candidate."""
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
    """The share of requests within the target that a candidate misses, with most units tried."""
    assert outcome.tried is not None
    verdict = judge.verdict_so_far(outcome.candidate, outcome.tried)
    return min((run.met[verdict.worst].share for run in verdict.runs), default=0.0)


def _over(outcome: Outcome, judge: Judge) -> float:
    """How far a candidate's bounds are above their targets, at worst: a ratio."""
    assert outcome.bounds is not None
    pairs = zip(outcome.bounds.least_s, judge.targets, strict=True)
    return max(least / target.within_s for least, target in pairs)


def _load_of(outcome: Outcome, judge: Judge) -> float | None:
    """The load that all of a candidate's units carry; None where none is kept."""
    runs = judge.runs(outcome.candidate, outcome.most)
    goal = replace(judge.goal, least=min(judge.goal.least, 2), most=min(judge.goal.most, 2))
    found = search(runs, [judge.level * share for share in _LOADS], goal)
    return None if found.capacity is None else min(found.capacity.low, found.capacity.level)
