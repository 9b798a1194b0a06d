"""Find a plan from start to end: its fleets, why candidates were kept or dropped, the evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from costmodels.hardware.uncertainty import NORMAL_90
from costmodels.models.catalog import load_model
from reports.schemas import PLAN
from scenarios.experiments.capacity.question import sizes
from scenarios.experiments.plan.candidates import Asked, Candidate, candidates
from scenarios.experiments.plan.finalists import Finalist, Relaxed, finalists, front, relaxed
from scenarios.experiments.plan.judge import Judge
from scenarios.experiments.plan.question import Question, ask
from scenarios.experiments.plan.rows import candidate_row, finalist_row, fleet_row, fleet_rows
from scenarios.experiments.plan.sampling import Sampled, sample, space_of
from scenarios.experiments.plan.search import Outcome, Search, rank_key
from scenarios.experiments.plan.targets import check_targets, with_slo
from scenarios.files.dump import given_text
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from scenarios.schema import Scenario
from scenarios.schema.plan import PlanFile
from scenarios.server_flags.inverse import commands_of
from sim import __version__
from sim.evidence import LABELS, weakest_share

_LEFT_OUT = {"replications", "bands"}
_METHOD = (
    "A fleet passes if each of its runs meets every target and its queue does not grow. {runs} "
    "Candidates are given up unsimulated only by proven bounds: what does not fit in memory, "
    "latencies that idle engines exceed, and the GPU time that the requests need at least. More "
    "replicas of a candidate are taken to do no worse than fewer."
)
_SAMPLED = (
    " Which candidates were tried was chosen by Optuna's TPE sampler, from what those before them "
    "cost or by how much they missed."
)
_RUNS = (
    "Its {count} runs differ by their seeds alone, so a further one is the worst of all with a "
    "chance of one in {more}."
)
_ONE_RUN = (
    "A recorded trace has one run; what another like it would do is Student's prediction bound "
    "over its tenths."
)


def find_plan(
    asked: Asked,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search, check the finalists and explain the answer: the content of plan.json.

    ``jobs`` and ``cluster``: see `scenarios.run.execution.workers.Workers`. Raises `ScenarioError`
    if the plan is not valid, and what `simulate` raises.
    """
    with Workers(jobs, cluster) as workers:
        return _found(asked, workers, progress)


def _found(asked: Asked, workers: Workers, progress: Progress | None) -> dict[str, Any]:
    started = time.perf_counter()
    space = space_of(asked) if asked.plan.search.method == "optuna" else None
    every = targeted(asked) if space is None else [space.start()]
    question = ask(asked.plan, every[0])
    judge = judge_of(asked.plan, question, workers, progress=progress)
    search = Search(plan=asked.plan, question=question, judge=judge)
    sampled = None
    if space is None:
        search.run(every)
    else:
        sampled = sample(space, search)
    chosen: list[Finalist] = []
    easier: Relaxed | None = None
    if search.ranked:
        chosen = finalists(search, judge)
        front(search, judge)
    else:
        easier = relaxed(search, judge)
    return content(
        asked=asked,
        question=question,
        search=search,
        judge=judge,
        finalists=chosen,
        relaxed=easier,
        sampled=sampled,
        wall_s=time.perf_counter() - started,
    )


def targeted(asked: Asked) -> list[Candidate]:
    """Return the candidates, each with the targets as its SLO."""
    every = candidates(asked)
    check_targets(asked.plan.targets, every[0].scenario)
    return [replace(one, scenario=with_slo(one.scenario, asked.plan.targets)) for one in every]


def judge_of(
    plan: PlanFile,
    question: Question,
    workers: Workers,
    *,
    progress: Progress | None = None,
    looks: bool = True,
) -> Judge:
    """Return the judge of a plan's fleets; ``looks`` says whether hopeless runs are stopped."""
    return Judge(
        level=question.level,
        plan=question.plan,
        targets=question.targets,
        confidence=plan.confidence,
        replications=question.replications,
        look_s=question.look_s if looks else None,
        allowed=question.allowed,
        workers=workers,
        progress=progress,
    )


def content(
    *,
    asked: Asked,
    question: Question,
    search: Search,
    judge: Judge,
    finalists: Sequence[Finalist],
    relaxed: Relaxed | None,
    sampled: Sampled | None,
    wall_s: float,
) -> dict[str, Any]:
    """Return everything that a reader of the answer needs."""
    rows = [finalist_row(one, question) for one in finalists]
    outcomes = list(search.outcomes.values())
    return {
        "schema": PLAN,
        "fleetcast_version": __version__,
        "question": _asked(asked, question),
        "counts": _counts(search, question),
        "ranked": rows,
        "candidates": [candidate_row(one, judge, question) for one in _by_rank(outcomes)],
        "fleets": fleet_rows(search, judge, question),
        "relaxed": None if relaxed is None else _relaxed_row(relaxed, question, judge),
        "sampled": None if sampled is None else _sampled_row(sampled),
        "winner": None if not finalists else winner(finalists[0], question),
        "conditions": _conditions(search, question),
        "evidence": _evidence(finalists),
        "method": _METHOD.format(runs=_runs_text(question)) + (_SAMPLED if sampled else ""),
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
            | ({"itl_of": t.itl_of} if t.metric == "itl" else {})
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


def _counts(search: Search, question: Question) -> dict[str, Any]:
    """Return three fleets: the smallest that fits, the cheapest, and the cheapest with a spare
    engine."""
    fitting = [one for one in search.outcomes.values() if one.build is not None]
    smallest = min(
        fitting,
        key=lambda one: (one.candidate.gpus, one.candidate.usd_per_h(1), one.candidate.name),
        default=None,
    )
    best, spare = (search.ranked[0] if search.ranked else None), search.spare
    return {
        "fits": None if smallest is None else fleet_row(smallest.candidate, 1),
        "cheapest": None if best is None else fleet_row(best.candidate, best.units or 1),
        "spare": None if spare is None else fleet_row(spare.candidate, spare.units or 1, spare=1),
    }


def _by_rank(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Sort ranked candidates first, then by their least cost; those that do not fit come last."""
    order = ("ranked", "cost", "simulated", "supply", "latency", "memory")

    def key(outcome: Outcome) -> tuple[int, float, str]:
        usd = outcome.least_usd_per_h or 0.0
        if outcome.units is not None:
            usd = rank_key(outcome)[0]
        return (order.index(outcome.stage), usd, outcome.candidate.name)

    return sorted(outcomes, key=key)


def _relaxed_row(relaxed: Relaxed, question: Question, judge: Judge) -> dict[str, Any]:
    nearest, free = relaxed.nearest, relaxed.without_limits
    row: dict[str, Any] = {
        "constraint": relaxed.constraint,
        "nearest": None if nearest is None else candidate_row(nearest, judge, question),
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
        row["without_limits"] = fleet_row(free.candidate, free.units)
        row["needs"] = free.candidate.gpus_by_name(free.units)
    return row


def _sampled_row(sampled: Sampled) -> dict[str, Any]:
    """Describe how a space was sampled that was not searched in full."""
    return {
        "method": sampled.method.method,
        "seed": sampled.method.seed,
        "candidates": sampled.candidates,
        "tried": sampled.tried,
        "simulated": sampled.simulated,
        "best": [{"trials": n, "usd_per_h": usd} for n, usd in sampled.best],
        "unreadable": sampled.unreadable,
    }


def _conditions(search: Search, question: Question) -> dict[str, Any]:
    first = next(iter(search.outcomes.values())).candidate.scenario
    best = [one.build for one in search.ranked[:1] if one.build is not None]
    notes = [found for one in best for found in (one.notes, *(p.notes for p in one.parts[1:]))]
    return {
        "model": first.model,
        "workload": question.table.source,
        "seed": first.seed,
        "requests": int(question.counted.sum()),
        "skipped": question.plan.counting(question.level).skip,
        "notes": sorted({note for of_part in notes for note in of_part}),
    }


def _evidence(finalists: Sequence[Finalist]) -> dict[str, Any]:
    """Return the evidence for the winner's time."""
    if not finalists:
        return {"shares": {}, "label": None, "half_width": None}
    runs = finalists[0].verdict.runs
    shares = {name: fmean(run.evidence.get(name, 0.0) for run in runs) for name in LABELS}
    shares = {name: share for name, share in shares.items() if share}
    return {
        "shares": shares,
        "label": weakest_share(shares),
        "half_width": NORMAL_90 * runs[0].errors[0],  # of the time a step takes on the GPU
    }


def winner(one: Finalist, question: Question) -> dict[str, Any]:
    """Return ``scenario``, the fleet's YAML at the planned load, and ``commands`` for its
    engines."""
    scenario = planned(one, question)
    return {
        "scenario": given_text(scenario, leave_out=_LEFT_OUT),
        "commands": commands_of(scenario),
    }


def planned(one: Finalist, question: Question) -> Scenario:
    """Return the scenario that was simulated for the fleet, as a single run."""
    assert one.outcome.units is not None
    scenario = one.outcome.candidate.fleet(one.outcome.units)
    if not Path(scenario.model).exists():  # servers know a model by its full name
        scenario = scenario.model_copy(update={"model": load_model(scenario.model).name})
    workload = sizes(scenario, question.level, question.plan.requests(question.level))
    return question.plan.variable.at(scenario, question.level, **workload)
