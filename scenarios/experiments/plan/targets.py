"""Targets of a plan: percentiles of latencies, as shares of requests that keep within a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scenarios.experiments.capacity.question import BLOCKS
from scenarios.run.result import RunResult
from scenarios.schema import Scenario
from scenarios.schema.plan import Target
from scenarios.schema.workload import SloTargets
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """The result of one run for one target: requests by consecutive stretch of arrivals."""

    good: tuple[int, ...]
    arrived: tuple[int, ...]
    value_s: float
    """The percentile itself, over the requests that arrived; infinite if too few finished."""

    @property
    def share(self) -> float:
        """Share of the arrived requests that were good; 1 if none arrived."""
        arrived = sum(self.arrived)
        return sum(self.good) / arrived if arrived else 1.0


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
    return SloTargets(**{f"{name}_s": target.within_s for name, target in chosen.items()})


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
        values = getattr(metrics, f"{target.metric}_s")[order]
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


def percentile_of(values: NDArray[np.float64], share: float) -> float:
    """Return the percentile as targets count it: the least value that this share keeps within."""
    if not len(values):
        return 0.0
    rank = max(math.ceil(share * len(values) - 1e-9), 1)
    return float(np.partition(values, rank - 1)[rank - 1])


def _by_block(flags: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(block.sum()) for block in np.array_split(flags, BLOCKS))
