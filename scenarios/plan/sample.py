"""A search of a space that is too large to list: Optuna chooses what to try, we judge it.

Each trial is a candidate that was not tried before. It is bounded first, and simulated only where
no bound rules it out; what it then costs, or by how much it misses, is all that Optuna is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scenarios.plan.objective import UNREADABLE, objective
from scenarios.plan.search import Search
from scenarios.plan.space import Space
from scenarios.plan.suggest import Suggestions
from scenarios.schema.plan import SearchMethod
from sim.errors import ScenarioError


@dataclass(kw_only=True)
class Sampled:
    """What a sampled search tried."""

    method: SearchMethod
    candidates: int | None
    """In the space; None: no end of them."""
    tried: int = 0
    simulated: int = 0
    """Of these, with any fleet; the others were ruled out by bounds."""
    best: list[tuple[int, float]] = field(default_factory=list)
    """After how many trials the cheapest fleet so far was found, and its USD per hour."""
    unreadable: list[str] = field(default_factory=list)
    """Of those tried whose values do not go together: why."""


def sample(space: Space, search: Search) -> Sampled:
    """Try as many candidates as the plan says, by ``search``; the same seed tries the same.

    Raises ScenarioError without Optuna, or where all candidates can be looked at as well.
    """
    method = space.asked.plan.search
    found = Sampled(method=method, candidates=space.candidates)
    if found.candidates is not None and method.trials >= found.candidates:
        raise ScenarioError(
            f"search: {method.trials:,} trials are enough for all {found.candidates:,} candidates: "
            "give fewer, or leave search out, and every one is looked at"
        )
    suggestions = Suggestions(space=space, seed=method.seed)
    while found.tried < method.trials:
        candidate = suggestions.ask()
        if candidate is None:
            break
        found.tried += 1
        if isinstance(candidate, ScenarioError):
            found.unreadable.append(str(candidate))
            suggestions.tell(UNREADABLE)
            continue
        outcome = search.consider(candidate)
        suggestions.tell(objective(outcome, search.judge))
        if outcome in search.ranked[:1]:
            usd_per_h = candidate.usd_per_h(outcome.units or 1)
            if not found.best or usd_per_h < found.best[-1][1] - 1e-9:
                found.best.append((found.tried, usd_per_h))
    if not search.outcomes:
        raise ScenarioError(found.unreadable[0])
    found.simulated = sum(outcome.is_simulated for outcome in search.outcomes.values())
    return found
