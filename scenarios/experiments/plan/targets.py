"""Targets of a plan (percentiles of latencies), and what a plan keeps of a run or a look at one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.experiments.capacity.measure import Met, RunFacts, counted_requests, measure
from scenarios.experiments.capacity.question import BLOCKS, RunPlan
from scenarios.experiments.capacity.search import Tally
from scenarios.run.result import RunResult
from scenarios.schema import Scenario
from scenarios.schema.plan import Target
from scenarios.schema.workload import SloTargets
from sim.books.token_times import request_gaps_s
from sim.errors import ScenarioError
from sim.recorder import UNSET

_CHANCE = 2.0  # standard deviations


def check_targets(targets: Sequence[Target], scenario: Scenario) -> None:
    """Raise `ScenarioError` for a class that the workload does not have."""
    known = [one.name for one in scenario.workload.classes]
    for target in targets:
        if target.of_class is not None and target.of_class not in known:
            told = ", ".join(known) or "none"
            raise ScenarioError(f"targets: no class {target.of_class!r}; the workload's: {told}")


def with_slo(scenario: Scenario, targets: Sequence[Target]) -> Scenario:
    """Return the scenario with the targets as its SLO.

    If a metric has several targets, the one with the highest percentile is used. Latency accounts
    are kept for this SLO and the winner's file has it, but the verdict considers every target by
    itself.
    """
    classes = [
        one.model_copy(update={"slo": _slo(targets, one.name)}) for one in scenario.workload.classes
    ]
    workload = scenario.workload.model_copy(update={"classes": classes})
    return scenario.model_copy(update={"workload": workload, "slo": _slo(targets, None)})


def _slo(targets: Sequence[Target], of_class: str | None) -> SloTargets:
    chosen: dict[str, Target] = {}
    for target in targets:
        before = chosen.get(target.metric)
        if target.of_class == of_class and (before is None or before.share < target.share):
            chosen[target.metric] = target
    limits: dict[str, Any] = {f"{name}_s": one.within_s for name, one in chosen.items()}
    if "itl" in chosen:
        limits["itl_of"] = chosen["itl"].itl_of
    return SloTargets(**limits)


def met_by(
    result: RunResult, counted: NDArray[np.bool_], targets: Sequence[Target]
) -> tuple[Met, ...]:
    """Return the results of the requests that count, target by target."""
    metrics, table = result.metrics, result.log.table
    order = np.flatnonzero(counted)
    order = order[np.argsort(metrics.arrival_s[order], kind="stable")]
    finished = metrics.finished[order]
    found = []
    for target in targets:
        own = np.ones(len(order), bool)
        if target.of_class is not None and table.class_index is not None:
            own = table.class_index[order] == table.class_names.index(target.of_class)
        values = _values(result, target)[order]
        # A one-token answer has no TPOT and meets any target; an unfinished request is late for
        # ever.
        late = np.where(finished, np.where(np.isnan(values), 0.0, values), np.inf)
        good = own & (late <= target.within_s)
        found.append(
            Met(
                good=_by_block(good),
                arrived=_by_block(own),
                value_s=percentile_of(late[own], target.share),
            )
        )
    return tuple(found)


def _values(result: RunResult, target: Target) -> NDArray[np.float64]:
    """Return the value that a target limits of each request, in seconds ``[n]``."""
    if target.metric == "itl":
        return request_gaps_s(result.log, target.itl_of)
    values: NDArray[np.float64] = getattr(result.metrics, f"{target.metric}_s")
    return values


def percentile_of(values: NDArray[np.float64], share: float) -> float:
    """Return the percentile as targets count it: the least value that this share keeps within."""
    if not len(values):
        return 0.0
    rank = max(math.ceil(share * len(values) - 1e-9), 1)
    return float(np.partition(values, rank - 1)[rank - 1])


def _by_block(flags: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(block.sum()) for block in np.array_split(flags, BLOCKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The misses of a run that was stopped early."""

    misses: tuple[int, ...]
    """Target by target: requests that count and surely miss it, whatever comes later."""
    simulated: int
    sent: int
    """Requests that count and had arrived."""
    finished: int
    """Those of them that finished."""


def measure_fleet(result: RunResult, plan: RunPlan, targets: Sequence[Target]) -> RunFacts:
    """Reduce a whole run; its tally is that of the worst target, see `by_worst`."""
    counted = counted_requests(result.metrics, plan.counting(plan.level_of(result.scenario)))
    met = met_by(result, counted, targets)
    facts = measure(result, plan)
    tally = by_worst(facts.tally, met, targets, plan.attainment)
    if not plan.variable.closed_loop:
        error = _chance(facts)
        tally = replace(tally, growth_error=max(tally.growth_error, error))
    return replace(facts, tally=tally, met=met)


def _chance(facts: RunFacts) -> float:
    """Return the growth of the number in the system that chance allows in a run, per arrival.

    A steady number scatters at least like a Poisson variable, by the root of its mean.
    """
    present = (facts.offered_per_s or 0.0) * facts.latency_s["e2e"].get("mean", 0.0)
    return _CHANCE * math.sqrt(2 * present) / max(facts.requests, 1)


def by_worst(
    tally: Tally, met: Sequence[Met], targets: Sequence[Target], attainment: float
) -> Tally:
    """Return a tally that attains ``attainment`` exactly when its worst target is exactly met.

    It counts the misses of the target that uses most of its allowance, scaled as if all targets had
    the same share.
    """
    used = [(1 - one.share) / (1 - t.share) for one, t in zip(met, targets, strict=True)]
    worst = int(np.argmax(used))
    own, target = met[worst], targets[worst]
    scale = (1 - attainment) / (1 - target.share) * sum(tally.arrived) / max(sum(own.arrived), 1)
    missed = [(a - g) * scale for a, g in zip(own.arrived, own.good, strict=True)]
    good = [max(a - round(m), 0) for a, m in zip(tally.arrived, missed, strict=True)]
    return replace(tally, good=tuple(good))


def look(result: RunResult, plan: RunPlan, targets: Sequence[Target]) -> Look:
    """Reduce a run that stopped at a horizon: a fleet that has missed enough by then has failed.

    What happens up to the horizon is what happens in the whole run.
    """
    log, metrics = result.log, result.metrics
    table = log.table
    counting = plan.counting(plan.level_of(result.scenario))
    arrival_ns = np.frombuffer(log.requests.arrival_ns, np.int64)
    sent = (arrival_ns != UNSET) & (arrival_ns <= log.end_ns)
    counts = np.zeros(len(table), bool)
    counts[counting.skip : len(table) - counting.skip_end] = True
    counts &= table.arrival_ns >= round(result.scenario.warmup_s * 1e9)
    counts &= sent
    waited_s = (log.end_ns - arrival_ns) / 1e9
    misses = []
    for target in targets:
        own = counts
        if target.of_class is not None and table.class_index is not None:
            own = counts & (table.class_index == table.class_names.index(target.of_class))
        values = _values(result, target)
        late = values > target.within_s
        if target.metric in ("ttft", "e2e"):  # not finished yet, but already too late
            late |= np.isnan(values) & ~metrics.finished & (waited_s > target.within_s)
        misses.append(int((own & late).sum()))
    return Look(
        misses=tuple(misses),
        simulated=int(sent.sum()),
        sent=int(counts.sum()),
        finished=int((counts & metrics.finished).sum()),
    )
