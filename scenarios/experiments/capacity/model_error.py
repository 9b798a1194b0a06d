"""How far off the capacity may be because of the model's error: search again on slower machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.hardware.uncertainty import NORMAL_90
from scenarios.experiments.capacity.estimate import pooled_crossing
from scenarios.experiments.capacity.measure import RunFacts
from scenarios.experiments.capacity.runs import Runs
from scenarios.experiments.capacity.search import Found, Tally, rounded

_BELOW = (0.8, -1.0, -2.5, -4.5)  # loads to look at, in standard deviations from the capacity
_FURTHER = (-8.0, -13.0)
_LOWEST = 0.05  # share of the capacity
_REPLICATIONS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """Relative changes of the capacity, and the 90% band that follows from them."""

    gpu: float
    """Change with the GPU slower by one standard deviation of its error."""
    host: float
    """Change with the host slower by one standard deviation of its error."""
    gpu_error: float
    host_error: float

    @property
    def half_width(self) -> float:
        """Half of the 90% band, relative; both errors are taken as independent and normal."""
        return NORMAL_90 * math.hypot(self.gpu, self.host)


def model_error(runs: Runs, found: Found) -> ModelError | None:
    """Find the capacity again, on the same requests, with the GPU and then the host slower.

    Returns None if there is no capacity.
    """
    capacity = found.capacity
    if capacity is None:
        return None
    slow = runs.other(plan=replace(runs.plan, slower=True), task="model error")
    replications = min(_REPLICATIONS, found.replications)
    gpu_error, host_error = runs.of(found.near[0])[0].errors
    if found.limit == "stability":
        level = next(at for at in found.near if not found.samples.is_stable(at))
        slow([(level, r) for r in range(replications)])
        left = [np.mean([t.throughput for t in of]) for of in _by_machine(slow.of(level))]
        gpu, host = (float(other / left[0]) - 1 for other in left[1:])
    else:
        spread = max(gpu_error, host_error / 2)
        gpu, host = _shifts(slow, replications, capacity.level, spread, found)
    return ModelError(gpu=gpu, host=host, gpu_error=gpu_error, host_error=host_error)


def _shifts(
    slow: Runs, replications: int, level: float, spread: float, found: Found
) -> tuple[float, float]:
    """Return how the crossing moves, relative to its place on the same requests without the
    change."""
    goal = found.samples.goal

    def levels_at(steps: Sequence[float]) -> set[float]:
        return {rounded(level * max(1 + step * spread, _LOWEST), goal) for step in steps}

    levels = levels_at(_BELOW)
    crossings: list[float] = []
    for more in (levels, levels_at(_FURTHER)):
        new = sorted(more - {at for at, _ in slow.facts})
        slow([(at, r) for at in new for r in range(replications)])
        seen = sorted({at for at, _ in slow.facts})
        if len(seen) < 2:  # fewer than one user is not possible
            return 0.0, 0.0
        crossings = [_crossing(slow, seen, machine, goal.attainment) for machine in range(3)]
        if min(crossings) > seen[0]:
            break
    return crossings[1] / crossings[0] - 1, crossings[2] / crossings[0] - 1


def _crossing(slow: Runs, levels: list[float], machine: int, attainment: float) -> float:
    tallies = [_by_machine(slow.of(at))[machine] for at in levels]
    good, arrived = (
        np.array([sum(sum(getattr(tally, name)) for tally in of) for of in tallies])
        for name in ("good", "arrived")
    )
    return pooled_crossing(np.array(levels), good, arrived, attainment)


def _by_machine(facts: list[RunFacts]) -> list[list[Tally]]:
    """Return the tallies of every replication: unchanged, with a slower GPU, with a slower host."""
    every = [(one.tally, *(one.slower or ())) for one in facts]
    return [list(of_machine) for of_machine in zip(*every, strict=True)]
