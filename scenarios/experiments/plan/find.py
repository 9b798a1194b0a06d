"""Find a plan, from start to end: the content of plan.json."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scenarios.experiments.plan.candidates import Candidate, candidates
from scenarios.experiments.plan.content import content
from scenarios.experiments.plan.finalists import Finalist, Relaxed, finalists, front, relaxed
from scenarios.experiments.plan.judge import Judge
from scenarios.experiments.plan.question import Question, ask
from scenarios.experiments.plan.read import Asked
from scenarios.experiments.plan.sampling import sample, space_of
from scenarios.experiments.plan.search import Search
from scenarios.experiments.plan.targets import check_targets, with_slo
from scenarios.schema.plan import PlanFile

Note = Callable[[str], None]


def find_plan(asked: Asked, *, jobs: int | None = None, note: Note | None = None) -> dict[str, Any]:
    """Search, check the finalists and explain the answer; see `scenarios.experiments.plan.content`.

    Raises `ScenarioError` if the plan is not valid, and what `simulate` raises.
    """
    started = time.perf_counter()
    space = space_of(asked) if asked.plan.search.method == "optuna" else None
    every = targeted(asked) if space is None else [space.start()]
    question = ask(asked.plan, every[0])
    judge = judge_of(asked.plan, question, jobs=jobs, note=note)
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
    *,
    jobs: int | None = None,
    note: Note | None = None,
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
        jobs=jobs,
        note=note,
    )
