"""The capacity of a scenario, from start to end: the content of capacity.json."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from scenarios.capacity.curve import Row, curve
from scenarios.capacity.model_error import model_error
from scenarios.capacity.near_saturation import LEAST, around, is_slow, longer
from scenarios.capacity.pilot import pilot
from scenarios.capacity.plan import RunPlan, automatic_count, has_own_size, is_fixed
from scenarios.capacity.question import Question
from scenarios.capacity.result import content
from scenarios.capacity.runs import Runs
from scenarios.capacity.samples import Goal
from scenarios.capacity.search import search
from scenarios.capacity.vary import choose_variable
from scenarios.capacity.wanted import wanted
from scenarios.schema import Scenario
from scenarios.workload.classes import class_slos
from sim.errors import ScenarioError

Note = Callable[[str, int, int], None]
"""Called with what is being done, how many runs of it are done, and of how many."""


def find_capacity(
    scenario: Scenario, question: Question, *, jobs: int | None = None, note: Note | None = None
) -> dict[str, Any]:
    """Search, and say what binds; see `scenarios.capacity.result` for what comes back.

    Raises ScenarioError where the question cannot be asked of this scenario, and what `simulate`
    raises.
    """
    started = time.perf_counter()
    _check(scenario, question)
    variable = choose_variable(scenario, question.vary)
    if question.stable and variable.closed_loop:
        raise ScenarioError("--stable: the queue of a closed loop cannot grow; give an SLO")
    scenario = scenario.model_copy(update={"bands": False, "replications": 1})
    first = pilot(scenario, variable)
    plan = RunPlan(
        variable=variable,
        attainment=question.attainment,
        counted=_counted(scenario, question),
        in_system=first.in_system,
        lengthens=question.num_requests is None,
        fixed=is_fixed(scenario),
        skips=not scenario.warmup_s and not has_own_size(scenario),
    )
    runs = Runs(scenario=scenario, plan=plan, jobs=jobs, progress=_named(note, "searching"))
    goal = _goal(scenario, question, plan)
    found = search(runs, first.levels, goal)
    earlier: list[Row] = []
    if is_slow(found, first) and plan.lengthens and plan.counted is not None:
        earlier = curve(found.samples, runs)
        runs = replace(runs, plan=longer(plan), facts={})
        goal = replace(goal, least=LEAST)
        found = search(runs, around(found), goal)
    error = needs = None
    if question.bands and found.capacity is not None:
        error = model_error(replace(runs, progress=_named(note, "model error")), found)
    if question.load is not None and found.capacity is not None:
        other = replace(runs, progress=_named(note, "checking"))
        needs = wanted(other, found.capacity, question.load, goal=goal, check=question.check)
    return content(
        scenario,
        question=question,
        pilot=first,
        runs=runs,
        found=found,
        earlier=earlier,
        error=error,
        needs=needs,
        wall_s=time.perf_counter() - started,
    )


def _check(scenario: Scenario, question: Question) -> None:
    if not 0 < question.attainment < 1:
        raise ScenarioError(
            f"--attainment {question.attainment:g}: must lie between 0 and 1, as 0.99; that every "
            "request is good is a matter of how long one looks"
        )
    if not 0.001 <= question.precision <= 0.2:
        raise ScenarioError(
            f"--precision {question.precision:g}: a half-width relative to the capacity, from "
            "0.001 to 0.2"
        )
    if not question.stable and not any(slo.targets for slo in class_slos(scenario)):
        raise ScenarioError(
            "no SLO: give --slo-ttft, --slo-tpot or --slo-e2e (in seconds), or slo in the "
            "scenario; or --stable for the highest rate whose queue does not grow"
        )


def _counted(scenario: Scenario, question: Question) -> int | None:
    if has_own_size(scenario):
        if question.num_requests is not None:
            raise ScenarioError(
                "--num-requests: this workload has a size of its own (a trace, a drift, or classes "
                "with sizes); cut a trace with workload.num_requests or workload.window_s"
            )
        return None
    return question.num_requests or automatic_count(question.attainment)


def _goal(scenario: Scenario, question: Question, plan: RunPlan) -> Goal:
    """Replications as there can be: every seed of a trace is the same trace."""
    replications = {"first": 1, "least": 1, "most": 1} if plan.fixed else {}
    return Goal(
        attainment=question.attainment,
        precision=question.precision,
        integer=plan.variable.closed_loop,
        queue_may_grow=plan.variable.closed_loop,
        any_attainment=question.stable,
        units=plan.units,
        **replications,
    )


def _named(note: Note | None, what: str) -> Callable[[int, int], None] | None:
    return None if note is None else partial(note, what)
