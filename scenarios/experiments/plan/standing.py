"""What stands beside a plan's answer: today's fleet, the fleet quarter by quarter, and whether
features pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scenarios.experiments.plan.candidates import Asked, Candidate, todays_fleet
from scenarios.experiments.plan.judge import Judge
from scenarios.experiments.plan.question import Question, ask
from scenarios.experiments.plan.rows import HOURS_A_MONTH, attained_rows, fleet_row
from scenarios.experiments.plan.search import Outcome, Search
from scenarios.experiments.plan.targets import with_slo
from scenarios.schema.plan import Demand
from sim.errors import FleetcastError

_FEW_QUARTERS = 8
"""Most quarters that are told one by one; longer plans are told by years."""
_CACHING = "kv.enable_prefix_caching"


def today_row(asked: Asked, question: Question, judge: Judge) -> dict[str, Any] | None:
    """Return today's fleet with its verdicts at today's peak and at the planned load; None: the
    plan does not say what serves today. A fleet that cannot be built says why (``refused``)."""
    candidate = todays_fleet(asked)
    if candidate is None or asked.plan.fleet is None:
        return None
    candidate = replace(candidate, scenario=with_slo(candidate.scenario, asked.plan.targets))
    units = asked.plan.fleet.replicas
    row = fleet_row(candidate, units) | {"refused": None, "now": None, "planned": None}
    demand = asked.plan.demand.model_copy(update={"years": 0.0})
    try:
        today = ask(asked.plan.model_copy(update={"demand": demand}), candidate)
        row["now"] = _verdict_row(judge, today, candidate, units)
        row["planned"] = _verdict_row(judge, question, candidate, units)
    except FleetcastError as error:
        row["refused"] = str(error)
    return row


def _verdict_row(
    judge: Judge, question: Question, candidate: Candidate, units: int
) -> dict[str, Any]:
    """Return the verdict on a fleet at a question's load, by a judge of its own: the fleet is none
    of the plan's."""
    own = Judge(
        level=question.level,
        plan=question.plan,
        targets=judge.targets,
        confidence=judge.confidence,
        replications=judge.replications,
        look_s=question.look_s,
        allowed=question.allowed,
        workers=judge.workers,
        progress=judge.progress,
    )
    verdict = own.verdict(candidate, units)
    return {
        "level": question.level,
        "kept": verdict.kept,
        "why": verdict.why,
        "worst": verdict.worst,
        "attained": attained_rows(verdict, question.targets),
    }


def growth_rows(
    demand: Demand, question: Question, ranked: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return load, engines and monthly cost of the cheapest fleet by quarter, or by year for long
    plans.

    Fleets before the last take as many units as the load needs at what a unit of the last fleet
    carries: they are in proportion, not simulated.
    """
    if not ranked or not demand.years or not demand.yearly_growth:
        return []
    best = ranked[0]
    carried = best["capacity"] or best["at_least"] or question.level
    a_unit = carried / best["units"]
    quarters = math.ceil(4 * demand.years)
    step = 0.25 if quarters <= _FEW_QUARTERS else 1.0
    rows = []
    for index in range(math.ceil(demand.years / step) + 1):
        years = min(index * step, demand.years)
        level = demand.level(question.now, years)
        is_last = years == demand.years
        units = best["units"] if is_last else max(1, math.ceil(level / a_unit - 1e-9))
        share = units / best["units"]
        rows.append(
            {
                "years": years,
                "level": level,
                "units": units,
                "gpus": round(best["gpus"] * share),
                "usd_per_month": best["usd_per_h"] * share * HOURS_A_MONTH,
                "is_simulated": is_last,
            }
        )
    return rows


def feature_rows(search: Search, question: Question) -> list[dict[str, Any]]:
    """Return for each feature that people ask for the least cost of a fleet with it and without it,
    where the plan tried both; else why nothing can be said."""
    shares = question.table.chains is not None
    caching = (
        "options: {kv.enable_prefix_caching: [true, false]}"
        if shares
        else "this workload does not say which prompts share prefixes, so caching neither helps "
        "nor costs here"
    )
    return [
        _feature(
            search,
            "separate prefill and decode",
            lambda one: one.is_split,
            "layouts: [{prefill: {...}, decode: {...}}]",
        ),
        _feature(
            search, "prefix caching", lambda one: bool(one.options.get(_CACHING, True)), caching
        ),
        _feature(
            search,
            "fp8",
            lambda one: any("fp8" in str(value) for value in one.options.values()),
            "options: {engine.quantization: [null, fp8]}",
        ),
        _feature(
            search,
            "speculation",
            lambda one: any(
                key.startswith("engine.speculative") and value is not None
                for key, value in one.options.items()
            ),
            "options: {engine.speculative: [null, {...}]}",
        ),
    ]


def _feature(
    search: Search, name: str, has: Callable[[Candidate], bool], otherwise: str
) -> dict[str, Any]:
    sides: dict[bool, list[Outcome]] = {True: [], False: []}
    for outcome in search.outcomes.values():
        sides[has(outcome.candidate)].append(outcome)
    row: dict[str, Any] = {"name": name, "otherwise": "", "with": None, "without": None}
    if not sides[True] or not sides[False]:
        return row | {"otherwise": otherwise}
    return row | {"with": _cheapest(sides[True]), "without": _cheapest(sides[False])}


def _cheapest(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return the cheapest fleet, or the least that one can cost; None: none meets the targets."""
    found = [
        (one.candidate.usd_per_h(one.units), True, one.candidate.name)
        for one in outcomes
        if one.units is not None
    ]
    found += [
        (one.candidate.usd_per_h(least), False, one.candidate.name)
        for one in outcomes
        if (least := _least_units(one)) is not None
    ]
    if not found:
        return None
    usd, is_known, candidate = min(found, key=lambda one: (one[0], not one[1], one[2]))
    return {"usd_per_h": usd, "is_known": is_known, "candidate": candidate}


def _least_units(outcome: Outcome) -> int | None:
    """Return the units from which a candidate that was given up may meet the targets; None: there
    are not so many, or their number is known."""
    if outcome.units is not None or outcome.bounds is None or outcome.bounds.refused is not None:
        return None
    least = max(outcome.bounds.units, (outcome.tried or 0) + 1)
    return least if least <= outcome.most and not outcome.alone else None
