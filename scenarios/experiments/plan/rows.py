"""The rows of plan.json: fleets, ranked candidates, all candidates, fleets on the cost front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from scenarios.experiments.plan.candidates import Candidate
from scenarios.experiments.plan.finalists import Finalist
from scenarios.experiments.plan.judge import Judge, Verdict
from scenarios.experiments.plan.question import Question
from scenarios.experiments.plan.search import Outcome, Search
from scenarios.schema.plan import Target
from sim.accounts import TIME_ACCOUNTS

HOURS_A_MONTH = 730


def fleet_row(candidate: Candidate, units: int, *, spare: int = 0) -> dict[str, Any]:
    """Describe a fleet in numbers."""
    usd = candidate.usd_per_h(units, spare=spare)
    return {
        "name": candidate.name,
        "units": units,
        "spare": spare,
        "engines": [
            {
                "role": engine.role,
                "replicas": units * engine.count + spare,
                "gpu": engine.gpu,
                "gpus": engine.gpus,
                "layout": engine.layout,
            }
            for engine in candidate.engines
        ],
        "options": dict(candidate.options),
        "gpus": sum(candidate.gpus_by_name(units, spare=spare).values()),
        "usd_per_h": usd,
        "usd_per_month": usd * HOURS_A_MONTH,
    }


def attained_rows(verdict: Verdict, targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Return per target the mean and least share that kept it, and the percentile reached."""
    found = []
    for i, target in enumerate(targets):
        values = [run.met[i].value_s for run in verdict.runs]
        value = max(values, default=math.inf)
        found.append(
            {
                "share": fmean(run.met[i].share for run in verdict.runs) if verdict.runs else None,
                "lowest": verdict.lowest[i] if verdict.lowest else None,
                "value_s": fmean(values) if math.isfinite(value) else None,
                "of_target": fmean(values) / target.within_s if math.isfinite(value) else None,
            }
        )
    return found


def _account(verdict: Verdict, targets: Sequence[Target]) -> tuple[str, float] | None:
    """Return the largest account of the slowest requests by the worst target, and its share."""
    metric = targets[verdict.worst].metric
    tails = [run.accounts_s.get(metric, {}).get("tail") for run in verdict.runs]
    known = [tail for tail in tails if tail]
    if not known:
        return None
    seconds = {name: fmean(tail[name] for tail in known) for name in TIME_ACCOUNTS}
    name = max(seconds, key=lambda one: seconds[one])
    return name, seconds[name] / (sum(seconds.values()) or 1.0)


def finalist_row(one: Finalist, question: Question) -> dict[str, Any]:
    outcome = one.outcome
    assert outcome.units is not None
    row = fleet_row(outcome.candidate, outcome.units)
    capacity = one.found.capacity
    tokens_per_h = (
        question.level
        * 3600
        * float((question.table.prompt_tokens + question.table.all_output_tokens).mean())
        if question.plan.variable.field == "rate_per_s"
        else None
    )
    return row | {
        "usd_per_million_tokens": (
            None if tokens_per_h is None else row["usd_per_h"] / tokens_per_h * 1e6
        ),
        "attained": attained_rows(one.verdict, question.targets),
        "worst": one.verdict.worst,
        "capacity": None if capacity is None else capacity.level,
        "interval": None if capacity is None else [capacity.low, capacity.high],
        "limit": one.found.limit,
        "at_least": max(one.found.samples.levels) if one.found.limit == "none found" else None,
        "headroom": None if capacity is None else capacity.level / question.level - 1,
        "binding": one.binding,
        "curve": [
            {
                key: row[key]
                for key in ("level", "attainment", "stable", "latency_s", "replications")
            }
            for row in one.rows
        ],
        "degraded": {
            role: {"kept": verdict.kept, "attained": attained_rows(verdict, question.targets)}
            for role, verdict in one.degraded.items()
        },
    }


def candidate_row(outcome: Outcome, judge: Judge, question: Question) -> dict[str, Any]:
    bounds, candidate = outcome.bounds, outcome.candidate
    row: dict[str, Any] = {
        "name": candidate.name,
        "stage": outcome.stage,
        "why": outcome.why,
        "options": dict(candidate.options),
        "unit": "set" if candidate.is_split else "replica",
        "unit_gpus": candidate.gpus,
        "units": outcome.units,
        "usd_per_h": None if outcome.units is None else candidate.usd_per_h(outcome.units),
        "least_units": None if bounds is None else bounds.units,
        "least_usd_per_h": outcome.least_usd_per_h,
        "most_units": outcome.most,
        "limit": outcome.limit,
        "refused": None,
        "tried": outcome.tried,
        "alone": outcome.alone,
        "missed": None,
    }
    if bounds is not None and bounds.refused is not None:
        least = bounds.least_s[bounds.refused]
        row["refused"] = {
            "target": bounds.refused,
            "least_s": least if math.isfinite(least) else None,
        }
    if outcome.tried is not None:
        verdict = judge.verdict_so_far(candidate, outcome.tried)
        row["missed"] = _missed_row(verdict, outcome, question)
    return row


def _missed_row(verdict: Verdict, outcome: Outcome, question: Question) -> dict[str, Any]:
    """Describe how a fleet missed: the target, and the account behind it if the run was
    complete."""
    account = _account(verdict, question.targets)
    assert outcome.tried is not None
    return {
        "units": outcome.tried,
        "usd_per_h": outcome.candidate.usd_per_h(outcome.tried),
        "target": verdict.worst,
        "why": verdict.why,
        "share": min((run.met[verdict.worst].share for run in verdict.runs), default=None),
        "account": None if account is None else account[0],
    }


def fleet_rows(search: Search, judge: Judge, question: Question) -> list[dict[str, Any]]:
    """Return every fleet that ran to the end and met the targets, marking those on the front."""
    rows = []
    by_name = {outcome.candidate.name: outcome.candidate for outcome in search.outcomes.values()}
    for (name, units), verdict in sorted((judge.firsts | judge.verdicts).items()):
        candidate = by_name[name]
        if not verdict.kept or not search.is_had(candidate, units):
            continue
        used = [row["of_target"] for row in attained_rows(verdict, question.targets)]
        if any(value is None for value in used):
            continue
        worst = max(range(len(used)), key=lambda i: float(used[i] or 0.0))
        rows.append(
            {
                "name": name,
                "units": units,
                "gpus": candidate.gpus * units,
                "usd_per_h": candidate.usd_per_h(units),
                "of_target": used[worst],
                "target": worst,
                "runs": len(verdict.runs),
            }
        )
    for row in rows:
        row["on_front"] = not any(
            other["usd_per_h"] <= row["usd_per_h"]
            and other["of_target"] <= row["of_target"]
            and (other["usd_per_h"], other["of_target"]) != (row["usd_per_h"], row["of_target"])
            for other in rows
        )
    return sorted(rows, key=lambda row: (row["usd_per_h"], row["of_target"], row["name"]))
