"""The ranked fleets, looked at closely: the load that each carries, what binds there, one down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.capacity.binding import binding
from scenarios.capacity.curve import Row, curve
from scenarios.capacity.search import Found, search
from scenarios.plan.judge import Judge, Verdict
from scenarios.plan.outcome import Outcome, rank_key
from scenarios.plan.search import Search
from scenarios.schema.plan import Target

_LOADS = (1.0, 1.08, 1.2, 1.4)
_MORE = (1.25, 1.5)
"""Times the units of a ranked fleet: what more money buys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A ranked candidate with its fewest units."""

    outcome: Outcome
    verdict: Verdict
    found: Found
    rows: list[Row]
    binding: dict[str, Any]
    degraded: dict[str, Verdict]
    """Role -> with the spare engines, and one engine of that role down."""

    @property
    def carried(self) -> float:
        """The load that it keeps the targets at; where no limit was found, the most tried."""
        capacity = self.found.capacity
        return max(self.found.samples.levels) if capacity is None else capacity.level


def finalists(chosen: Search, judge: Judge) -> list[Finalist]:
    """All of a search's ranked candidates; of those that cost the same, by what they can carry."""
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
    """Metric -> the tightest time that any target has for it."""
    names = [name for name in ("ttft", "tpot", "e2e") if any(t.metric == name for t in targets)]
    return {name: min(t.within_s for t in targets if t.metric == name) for name in names}


def front(chosen: Search, judge: Judge) -> None:
    """Simulate ranked fleets with more units too, once each: what more money would buy."""
    for outcome in chosen.ranked:
        assert outcome.units is not None
        for units in sorted({outcome.units + 1, *(math.ceil(outcome.units * m) for m in _MORE)}):
            if chosen.is_had(outcome.candidate, units):
                judge.first(outcome.candidate, units, looks=False)
