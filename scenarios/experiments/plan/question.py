"""A plan's question in numbers: the load, the length of runs, and the requests of the first run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.build.workload.table import build_table
from scenarios.experiments.capacity.question import (
    RunPlan,
    automatic_count,
    choose_variable,
    has_own_size,
    is_fixed,
    sizes,
)
from scenarios.experiments.plan.candidates import Candidate
from scenarios.schema.plan import PlanFile, Target
from sim.errors import ScenarioError
from sim.request_table import RequestTable

_LOOK = 0.2  # share of counted requests after which a hopeless run is noticed
_TOKEN_S = 0.05  # seconds per output token, where no target says how long one may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of a plan, equal for all candidates so that each is judged on its own."""

    level: float
    now: float
    plan: RunPlan
    targets: tuple[Target, ...]
    replications: int
    table: RequestTable
    """Requests of the first run of any fleet."""
    counted: NDArray[np.bool_]
    """Mask of the requests in ``table`` that count."""
    look_s: float | None
    allowed: tuple[int, ...]


def ask(plan: PlanFile, candidate: Candidate) -> Question:
    """Derive the question from a plan and any of its candidates, which all have the same workload.

    Raises `ScenarioError` if the workload has no load to plan for.
    """
    scenario = candidate.scenario
    if scenario.horizon_s is not None:
        raise ScenarioError("horizon_s: a plan counts all requests of a workload; leave it out")
    variable = choose_variable(scenario)
    now = plan.demand.now or variable.value(scenario)
    if now is None:
        raise ScenarioError(
            f"demand.now: the workload does not say how many {variable.unit} there are; give them"
        )
    demand = plan.demand
    level = demand.level(now, demand.years)
    level = float(max(round(level), 1)) if variable.closed_loop else float(f"{level:.4g}")
    fixed = is_fixed(scenario)
    targets = tuple(plan.targets)
    counted = None
    if not has_own_size(scenario):
        counted = plan.num_requests or automatic_count(max(t.share for t in targets)) // 2
    elif plan.num_requests is not None:
        raise ScenarioError(
            "num_requests: this workload has a size of its own (a trace, a drift, or classes with "
            "sizes); cut a trace with workload.num_requests or workload.window_s"
        )
    runs = RunPlan(
        variable=variable,
        attainment=max(target.share for target in targets),
        counted=counted,
        in_system=0.0 if counted is None else _in_system(candidate, level, targets),
        lengthens=plan.num_requests is None,
        fixed=fixed,
        skips=not scenario.warmup_s and not has_own_size(scenario),
    )
    table = _table(candidate, runs, level)
    counts = _counts(table, runs, level, scenario.warmup_s)
    if not counts.any():
        raise ScenarioError("no request of the workload counts: it is shorter than its warm-up")
    return Question(
        level=level,
        now=now,
        plan=runs,
        targets=targets,
        replications=1 if fixed else runs_for(plan.confidence),
        table=table,
        counted=counts,
        look_s=_look_s(table, counts) if table.is_open_loop else None,
        allowed=tuple(_allowed(target, table, counts) for target in targets),
    )


def runs_for(confidence: float) -> int:
    """Return how many runs must all meet the targets for a further one to do so with a confidence.

    Among exchangeable runs, the last of ``k + 1`` is the worst with a chance of one in ``k + 1``.
    """
    return max(math.ceil(confidence / (1 - confidence) - 1e-9), 1)


def _table(candidate: Candidate, runs: RunPlan, level: float) -> RequestTable:
    scenario = candidate.scenario
    workload: dict[str, Any] = sizes(scenario, level, runs.requests(level))
    return build_table(runs.variable.at(scenario, level, **workload))


def _in_system(candidate: Candidate, level: float, targets: Sequence[Target]) -> float:
    """Return the requests in a system that just keeps the targets, which a warm-up must fill."""
    if candidate.scenario.workload.users or candidate.scenario.workload.max_concurrency:
        return 0.0
    scenario = candidate.scenario
    few = scenario.workload.model_copy(update=sizes(scenario, level, 1000) | {"rate_per_s": level})
    outputs = build_table(scenario.model_copy(update={"workload": few})).output_tokens
    within = {target.metric: target.within_s for target in targets}
    answer_s = float(outputs.mean()) * within.get("tpot", _TOKEN_S) + within.get("ttft", 0.0)
    return level * min(answer_s, within.get("e2e", answer_s))


def _counts(table: RequestTable, runs: RunPlan, level: float, warmup_s: float) -> NDArray[np.bool_]:
    counting = runs.counting(level)
    measured = np.flatnonzero(table.arrival_ns >= round(warmup_s * 1e9))
    counts = np.zeros(len(table), bool)
    counts[measured[counting.skip : len(measured) - counting.skip_end]] = True
    return counts


def _look_s(table: RequestTable, counts: NDArray[np.bool_]) -> float | None:
    arrivals = table.arrival_ns[counts]
    at = arrivals[int(_LOOK * len(arrivals))]
    return float(at) / 1e9 if at else None


def _allowed(target: Target, table: RequestTable, counts: NDArray[np.bool_]) -> int:
    """Return the requests of a run that may miss a target."""
    own = counts
    if target.of_class is not None and table.class_index is not None:
        own = counts & (table.class_index == table.class_names.index(target.of_class))
    return int((1 - target.share) * int(own.sum()) + 1e-9)
