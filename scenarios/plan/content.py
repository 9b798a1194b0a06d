"""plan.json: the fleets, why each candidate was kept or dropped, what it rests on, as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from costmodels.evidence import LABELS
from scenarios import __version__
from scenarios.plan.candidates import Candidate
from scenarios.plan.finalists import Finalist
from scenarios.plan.infeasible import Relaxed
from scenarios.plan.judge import Judge, Verdict
from scenarios.plan.question import Question
from scenarios.plan.read import Asked
from scenarios.plan.search import Outcome, Search, rank_key
from scenarios.plan.winner import winner
from scenarios.schema.plan import Target
from sim.accounts import TIME_ACCOUNTS

SCHEMA = "fleetcast.plan/1"
_LABEL_SHARE = 0.05  # of the time, for a label to count
_HOURS_A_MONTH = 730
_METHOD = (
    "A fleet passes if each of its runs meets every target and its queue does not grow. {runs} "
    "Candidates are given up unsimulated only by proven bounds: what does not fit in memory, "
    "latencies that idle engines exceed, and the GPU time that the requests need at least. More "
    "replicas of a candidate are taken to do no worse than fewer."
)
_RUNS = (
    "Its {count} runs differ by their seeds alone, so a further one is the worst of all with a "
    "chance of one in {more}."
)
_ONE_RUN = (
    "A recorded trace has one run; what another like it would do is Student's prediction bound "
    "over its tenths."
)


def content(
    *,
    asked: Asked,
    question: Question,
    search: Search,
    judge: Judge,
    finalists: Sequence[Finalist],
    relaxed: Relaxed | None,
    wall_s: float,
) -> dict[str, Any]:
    """Everything a reader of the answer needs."""
    rows = [_finalist_row(one, question) for one in finalists]
    outcomes = list(search.outcomes.values())
    return {
        "schema": SCHEMA,
        "fleetcast_version": __version__,
        "question": _asked(asked, question),
        "counts": _counts(search, question),
        "ranked": rows,
        "candidates": [_candidate_row(one, judge, question) for one in _by_rank(outcomes)],
        "fleets": _fleets(search, judge, question),
        "relaxed": None if relaxed is None else _relaxed_row(relaxed, question, judge),
        "winner": None if not finalists else winner(finalists[0], question),
        "conditions": _conditions(search, question),
        "evidence": _evidence(finalists),
        "method": _METHOD.format(runs=_runs_text(question)),
        "run": {
            "requests": judge.simulated,
            "fleets": len(judge.firsts | judge.verdicts),
            "candidates": len(outcomes),
            "wall_s": wall_s,
        },
    }


def _runs_text(question: Question) -> str:
    if question.plan.fixed:
        return _ONE_RUN
    return _RUNS.format(count=question.replications, more=question.replications + 1)


def _asked(asked: Asked, question: Question) -> dict[str, Any]:
    demand = asked.plan.demand
    prompts = question.table.prompt_tokens[question.counted]
    outputs = question.table.all_output_tokens[question.counted]
    return {
        "unit": question.plan.variable.unit,
        "now": question.now,
        "growth_per_year": demand.growth_per_year,
        "years": demand.years,
        "peak": demand.peak,
        "level": question.level,
        "targets": [
            {"of_class": t.of_class, "metric": t.metric, "share": t.share, "within_s": t.within_s}
            for t in question.targets
        ],
        "confidence": asked.plan.confidence,
        "replications": question.replications,
        "fixed": question.plan.fixed,
        "requests": int(question.counted.sum()),
        "prompt_tokens": float(prompts.mean()),
        "output_tokens": float(outputs.mean()),
        "budget_usd_per_h": asked.plan.budget_usd_per_h,
        "gpus": [offer.model_dump() for offer in asked.plan.gpus],
    }


def _fleet(candidate: Candidate, units: int, *, spare: int = 0) -> dict[str, Any]:
    """A fleet in numbers."""
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
        "usd_per_month": usd * _HOURS_A_MONTH,
    }


def _counts(search: Search, question: Question) -> dict[str, Any]:
    """The three: what fits, what is cheapest, and with an engine to spare."""
    fitting = [one for one in search.outcomes.values() if one.parts]
    smallest = min(
        fitting,
        key=lambda one: (one.candidate.gpus, one.candidate.usd_per_h(1), one.candidate.name),
        default=None,
    )
    cheapest = search.ranked[0] if search.ranked else None
    spare = search.spare
    return {
        "fits": None if smallest is None else _fleet(smallest.candidate, 1),
        "cheapest": None if cheapest is None else _fleet(cheapest.candidate, cheapest.units or 1),
        "spare": None if spare is None else _fleet(spare.candidate, spare.units or 1, spare=1),
    }


def _attained(verdict: Verdict, targets: Sequence[Target]) -> list[dict[str, Any]]:
    """Target by target: the share that kept it, the least of any run, and the percentile."""
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
    """The largest account of the slowest requests by the worst target's metric, and its share."""
    metric = targets[verdict.worst].metric
    tails = [run.facts.accounts_s.get(metric, {}).get("tail") for run in verdict.runs]
    known = [tail for tail in tails if tail]
    if not known:
        return None
    seconds = {name: fmean(tail[name] for tail in known) for name in TIME_ACCOUNTS}
    name = max(seconds, key=lambda one: seconds[one])
    return name, seconds[name] / (sum(seconds.values()) or 1.0)


def _finalist_row(one: Finalist, question: Question) -> dict[str, Any]:
    outcome = one.outcome
    assert outcome.units is not None
    row = _fleet(outcome.candidate, outcome.units)
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
        "attained": _attained(one.verdict, question.targets),
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
            role: {"kept": verdict.kept, "attained": _attained(verdict, question.targets)}
            for role, verdict in one.degraded.items()
        },
    }


def _by_rank(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Ranked ones first, then by what they cost at least, those that do not fit last."""
    order = ("ranked", "cost", "simulated", "supply", "latency", "memory")

    def key(outcome: Outcome) -> tuple[int, float, str]:
        usd = outcome.least_usd_per_h or 0.0
        if outcome.units is not None:
            usd = rank_key(outcome)[0]
        return (order.index(outcome.stage), usd, outcome.candidate.name)

    return sorted(outcomes, key=key)


def _candidate_row(outcome: Outcome, judge: Judge, question: Question) -> dict[str, Any]:
    bounds, candidate = outcome.bounds, outcome.candidate
    row: dict[str, Any] = {
        "name": candidate.name,
        "stage": outcome.stage,
        "why": outcome.why,
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
    """How a fleet missed: the target, and the account behind it where it ran to its end."""
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


def _fleets(search: Search, judge: Judge, question: Question) -> list[dict[str, Any]]:
    """Every fleet that was simulated to the end and met the targets; which are on the front."""
    rows = []
    by_name = {outcome.candidate.name: outcome.candidate for outcome in search.outcomes.values()}
    for (name, units), verdict in sorted((judge.firsts | judge.verdicts).items()):
        candidate = by_name[name]
        if not verdict.kept or not search.is_had(candidate, units):
            continue
        used = [row["of_target"] for row in _attained(verdict, question.targets)]
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


def _relaxed_row(relaxed: Relaxed, question: Question, judge: Judge) -> dict[str, Any]:
    nearest, free = relaxed.nearest, relaxed.without_limits
    row: dict[str, Any] = {
        "constraint": relaxed.constraint,
        "nearest": None if nearest is None else _candidate_row(nearest, judge, question),
        "least_s": None,
        "without_limits": None,
        "needs": {},
        "load": relaxed.load,
    }
    if nearest is not None and nearest.bounds is not None:
        row["least_s"] = [
            least if math.isfinite(least) else None for least in nearest.bounds.least_s
        ]
    if free is not None and free.units is not None:
        row["without_limits"] = _fleet(free.candidate, free.units)
        row["needs"] = free.candidate.gpus_by_name(free.units)
    return row


def _conditions(search: Search, question: Question) -> dict[str, Any]:
    first = next(iter(search.outcomes.values())).candidate.scenario
    notes = [part.notes for one in search.ranked[:1] for part in one.parts]
    return {
        "model": first.model,
        "workload": question.table.source,
        "seed": first.seed,
        "requests": int(question.counted.sum()),
        "skipped": question.plan.counting(question.level).skip,
        "notes": sorted({note for of_part in notes for note in of_part}),
    }


def _evidence(finalists: Sequence[Finalist]) -> dict[str, Any]:
    """Of the winner's time."""
    if not finalists:
        return {"shares": {}, "label": None}
    runs = [run.facts.evidence for run in finalists[0].verdict.runs]
    shares = {name: fmean(run.get(name, 0.0) for run in runs) for name in LABELS}
    shares = {name: share for name, share in shares.items() if share}
    weakest = [name for name in reversed(LABELS) if shares.get(name, 0) >= _LABEL_SHARE]
    return {"shares": shares, "label": weakest[0] if weakest else None}
