"""Find the capacity of a scenario, from start to end: the content of capacity.json."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from scenarios.build.layout import replica_gpus
from scenarios.build.workload.classes import class_slos
from scenarios.experiments.capacity.estimate import Estimate
from scenarios.experiments.capacity.measure import Row, curve
from scenarios.experiments.capacity.model_error import model_error
from scenarios.experiments.capacity.question import (
    Question,
    RunPlan,
    automatic_count,
    choose_variable,
    has_own_size,
    is_fixed,
)
from scenarios.experiments.capacity.result import content
from scenarios.experiments.capacity.runs import Pilot, Runs, pilot
from scenarios.experiments.capacity.search import Found, Goal, Samples, search
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from scenarios.run.warnings import CLOSE_TO_SATURATION
from scenarios.schema import Scenario
from sim.errors import ScenarioError

_LEAST = 4
"""Replications near the crossing, each as long as several runs of the first search."""
_LONGER = 4  # times
_AROUND = (0.88, 0.94, 1.0, 1.06, 1.15)
_REPLICATIONS = 4
_MOST_CHECKS = 3  # beside the first


def find_capacity(
    scenario: Scenario,
    question: Question,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search the capacity and say what binds there.

    Returns what `scenarios.experiments.capacity.result` describes. ``jobs`` and ``cluster``: see
    `scenarios.run.execution.workers.Workers`. Raises `ScenarioError` if the question does not fit
    this scenario, and what `simulate` raises.
    """
    with Workers(jobs, cluster) as workers:
        return _found(scenario, question, workers, progress)


def _found(
    scenario: Scenario, question: Question, workers: Workers, progress: Progress | None
) -> dict[str, Any]:
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
    runs = Runs(scenario=scenario, plan=plan, workers=workers, progress=progress)
    goal = _goal(scenario, question, plan)
    found = search(runs, first.levels, goal)
    earlier: list[Row] = []
    if _is_slow(found, first) and plan.lengthens and plan.counted is not None:
        earlier = curve(found.samples, runs)
        runs = runs.other(plan=_longer(plan))
        goal = replace(goal, least=_LEAST)
        found = search(runs, _around(found), goal)
    error = needs = None
    if question.bands and found.capacity is not None:
        error = model_error(runs, found)
    if question.load is not None and found.capacity is not None:
        other = replace(runs, task="checking")
        needs = _replicas_for(other, found.capacity, question.load, goal=goal, check=question.check)
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
    """Return the goal of the search, with one replication if every seed gives the same trace."""
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


def _is_slow(found: Found, pilot: Pilot) -> bool:
    """Return whether the answer lies at loads where runs of the usual length have not settled."""
    if found.capacity is None or pilot.saturation_level is None:
        return False
    return (
        found.limit == "stability"
        or found.capacity.level > CLOSE_TO_SATURATION * pilot.saturation_level
    )


def _longer(plan: RunPlan) -> RunPlan:
    """Return the plan with longer runs and warm-ups."""
    assert plan.counted is not None
    return replace(plan, counted=_LONGER * plan.counted)


def _around(found: Found) -> list[float]:
    """Return the loads around the first answer at which the second search begins."""
    assert found.capacity is not None
    return [found.capacity.level * share for share in _AROUND]


def _replicas_for(
    runs: Runs, capacity: Estimate, load: float, *, goal: Goal, check: bool
) -> dict[str, Any]:
    """Return the replicas and GPUs for a load, if each replica adds the capacity of one.

    With ``check``, simulate them at that load, with more or fewer replicas until the verdict
    changes.
    """
    scenario = runs.scenario
    now, ranks = scenario.pool.replicas, replica_gpus(scenario)
    needed = max(1, math.ceil(load / (capacity.level / now) - 1e-9))
    surely = max(1, math.ceil(load / (capacity.low / now) - 1e-9)) if capacity.low > 0 else needed
    checks = _checks(runs, load, needed, goal) if check else []
    kept = [one["replicas"] for one in checks if one["kept"]]
    return {
        "level": load,
        "replicas": needed,
        "gpus": needed * ranks,
        "replicas_at_interval": surely,
        "assumes": "each replica adds the capacity of one: linear scaling behind the router",
        "simulated_replicas": min(kept, default=None),
        "checks": sorted(checks, key=lambda one: int(one["replicas"])),
    }


def _checks(runs: Runs, load: float, needed: int, goal: Goal) -> list[dict[str, Any]]:
    """Simulate the replicas needed, then fewer while they keep the SLO, or more until they do."""
    checks = [_checked(runs, load, needed, goal)]
    step = -1 if checks[0]["kept"] else 1
    for replicas in range(needed + step, needed + (_MOST_CHECKS + 1) * step, step):
        if replicas < 1:
            break
        checks.append(_checked(runs, load, replicas, goal))
        if checks[-1]["kept"] != checks[0]["kept"]:
            break
    return checks


def _checked(runs: Runs, load: float, replicas: int, goal: Goal) -> dict[str, Any]:
    scenario = runs.scenario
    grown = replicas / scenario.pool.replicas
    pool = scenario.pool.model_copy(update={"replicas": replicas})
    plan = replace(runs.plan, in_system=runs.plan.in_system * grown)
    other = runs.other(scenario=scenario.model_copy(update={"pool": pool}), plan=plan)
    samples = Samples(goal=goal, run=other)
    samples.add([load], min(_REPLICATIONS, goal.most))
    return {
        "replicas": replicas,
        "attainment": samples.attainment(load),
        "interval": list(samples.interval(load)),
        "stable": samples.is_stable(load),
        "kept": samples.keeps(load),
    }
