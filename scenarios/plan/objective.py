"""How good a candidate is, for a search that learns from those it has tried: less is better.

Only the order counts, as TPE looks at nothing else: candidates with a fleet that passes, by what
it costs; below them those without one, by what rules them out and by how much.
"""

from __future__ import annotations

import math

from scenarios.plan.judge import Judge
from scenarios.plan.outcome import Outcome

_WORSE = 1e12
"""USD per hour: above what any fleet costs."""
UNREADABLE = 6 * _WORSE
"""Of values that do not go together."""


def objective(outcome: Outcome, judge: Judge) -> float:
    """Of a candidate that a search is done with.

    Where only some of its fleets are known not to pass, those that may do cost more than these:
    the cheapest of them is taken, and what the last one missed is added.
    """
    candidate = outcome.candidate
    if outcome.units is not None:
        return candidate.usd_per_h(outcome.units)
    if outcome.stage == "memory":
        return 5 * _WORSE
    assert outcome.bounds is not None
    if outcome.stage == "latency":
        pairs = zip(outcome.bounds.least_s, judge.targets, strict=True)
        return _infeasible(3, max(least / target.within_s for least, target in pairs) - 1)
    if outcome.stage == "supply":
        return _infeasible(2, outcome.bounds.units / max(outcome.most, 0.5) - 1)
    if outcome.tried is None:  # even what it costs at least is too much
        return candidate.usd_per_h(outcome.bounds.units)
    missed = _missed(outcome, judge)
    if outcome.alone or outcome.tried >= outcome.most:
        return _infeasible(1, missed)
    return candidate.usd_per_h(outcome.tried + 1) * (1 + missed)


def _missed(outcome: Outcome, judge: Judge) -> float:
    """The requests that its largest fleet lacks for the target it misses, as a share of those."""
    assert outcome.tried is not None
    verdict = judge.verdict_so_far(outcome.candidate, outcome.tried)
    if not verdict.runs:  # a look at the beginning was enough
        return 1.0
    share = min(run.met[verdict.worst].share for run in verdict.runs)
    return max(1 - share / judge.targets[verdict.worst].share, 0.0)


def _infeasible(rank: int, by: float) -> float:
    """Between a rank and the next, however much it is."""
    return _WORSE * (rank + (by / (1 + by) if math.isfinite(by) else 1.0))
