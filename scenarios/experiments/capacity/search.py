"""Search the highest load that keeps the attainment: a grid, then replications near the crossing.

Every load is run with the same seeds (common random numbers), so that runs differ only by their
load. First a coarse grid over the whole range, run at once, shows where attainment crosses its
target; then a few loads around that get replications until the interval is as narrow as asked. A
load whose queue keeps growing is never kept, whatever its requests say, because a run ends before
an overloaded queue has become as long as it will.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scenarios.experiments.capacity.estimate import Estimate, half_width
from scenarios.experiments.capacity.samples import Goal, Point, Samples, Tally

Limit = Literal["slo", "stability", "none met", "none found"]

_AROUND = (-1.5, -0.5, 0.5, 1.5)  # loads near the crossing, in steps
_STEP = 1.5  # step between loads near the crossing, in half-widths of the asked precision
_WIDE = 1.5  # ratio of neighbors beyond which loads between them are tried first
_FEW = 4  # users
_MOST_ROUNDS = 20
# growth of replications per round, limited because the first intervals are rough guesses
_MORE = 2.0
_MOST_UP, _MOST_DOWN = 5, 2  # times that the grid is extended
_UP, _DOWN = (1.4, 2.0, 2.8, 4.0), (1 / 12, 1 / 5, 1 / 2)


@dataclass(frozen=True, kw_only=True)
class Found:
    """The answer of a search, with all its samples."""

    limit: Limit
    """What ends the range: the SLO, or the queue; ``none met``: no load keeps the attainment;
    ``none found``: every load does."""
    capacity: Estimate | None
    """None where there is no such load, or none was found."""
    near: tuple[float, ...]
    """The loads around the answer, which have most replications."""
    replications: int
    """Replications of each load near the answer."""
    samples: Samples


def search(
    run: Callable[[Sequence[Point]], Sequence[Tally]], coarse: Sequence[float], goal: Goal
) -> Found:
    """Return the highest load that keeps ``goal.attainment``, starting from the loads ``coarse``.

    ``run`` is called with batches of independent points and returns their tallies in order. The
    same seeds and loads give the same answer regardless of how many runs are done in parallel.
    """
    samples = Samples(goal=goal, run=run)
    samples.add({rounded(level, goal) for level in coarse}, goal.first)
    for extension in range(_MOST_UP):
        kept, missed = samples.keeps(samples.levels[0]), not samples.keeps(samples.levels[-1])
        if kept and missed:
            return _refined(samples)
        if not kept and extension == _MOST_DOWN:
            break
        end, factors = (samples.levels[-1], _UP) if kept else (samples.levels[0], _DOWN)
        more = {rounded(end * factor, goal) for factor in factors}
        if more <= set(samples.levels):
            break
        samples.add(more, goal.first)
    kept = samples.keeps(samples.levels[0])
    if kept and not samples.keeps(samples.levels[-1]):
        return _refined(samples)
    return Found(
        limit="none found" if kept else "none met",
        capacity=None,
        near=(samples.levels[-1 if kept else 0],),
        replications=goal.first,
        samples=samples,
    )


def rounded(level: float, goal: Goal) -> float:
    """Round a load to a tenth of the precision asked for, as a person would give it."""
    if goal.integer:
        return float(max(round(level), 1))
    digits = 2 + math.ceil(-math.log10(goal.precision))
    return float(f"{level:.{digits}g}")


def _refined(samples: Samples) -> Found:
    """Replicate the loads around the crossing until its interval is narrow enough."""
    goal, replications = samples.goal, samples.goal.first
    near = _near(samples)
    for _ in range(_MOST_ROUNDS):
        samples.add(near, replications)
        if len(near) > 2 or not samples.bracket(near, replications):
            near = _near(samples)  # move nearer, or elsewhere, by what the new runs show
            continue
        _, capacity = _answer(samples, near, replications)
        wide = capacity.precision / goal.precision
        if replications >= goal.least and (wide <= 1 or replications >= goal.most):
            break
        more = math.ceil(replications * min(1.1 * wide**2, _MORE))
        replications = min(max(more, goal.least), goal.most)
        near = _near(samples)
    samples.add(near, replications)
    limit, capacity = _answer(samples, near, replications)
    return Found(
        limit=limit,
        capacity=capacity,
        near=tuple(near),
        replications=replications,
        samples=samples,
    )


def _near(samples: Samples) -> list[float]:
    """Return the two loads that bracket the crossing, or new ones if those are far apart."""
    goal, center = samples.goal, samples.crossing()
    step = _STEP * goal.precision
    below = [level for level in samples.levels if level <= center]
    above = [level for level in samples.levels if level > center]
    if below and above:
        gap = above[0] - below[-1]
        if goal.integer and gap <= _FEW:  # a single user more or less can be distinguished
            floor = float(max(math.floor(center), 1))
            return [floor, floor + 1]
        if gap <= 1.05 * step * below[-1]:
            return [below[-1], above[0]]
        if above[0] > _WIDE * below[-1]:  # too far apart to interpolate
            between = np.geomspace(below[-1], above[0], len(_AROUND) + 2)[1:-1]
            return sorted({below[-1], above[0], *(rounded(at, goal) for at in between)})
    if goal.integer:
        width = max(step * center, 1.0)
        return sorted({rounded(center + width * k, goal) for k in _AROUND})
    return sorted({rounded(center * (1 + step) ** k, goal) for k in _AROUND})


def _answer(samples: Samples, near: list[float], replications: int) -> tuple[Limit, Estimate]:
    """Return what ends the range near the answer, and where."""
    growing = [level for level in near if not samples.is_stable(level)]
    if not samples.goal.any_attainment:
        by_slo = samples.estimate(near, replications)
        if not growing or by_slo.level < growing[0] * (1 - 1e-9):
            return "slo", _floored(by_slo) if samples.goal.integer else by_slo
    # The queue ends it: arrivals cannot exceed what leaves in overload for long.
    first = growing[0]
    left = np.array([tally.throughput for tally in samples.of(first, replications)])
    limit, half = min(float(left.mean()), first), half_width(left)
    return "stability", Estimate(level=limit, low=limit - half, high=limit + half)


def _floored(estimate: Estimate) -> Estimate:
    """Round a crossing and its interval down to whole users."""
    level, low = (float(max(math.floor(x + 1e-9), 1)) for x in (estimate.level, estimate.low))
    high = float(math.ceil(estimate.high - 1e-6) - 1)
    return Estimate(level=level, low=low, high=max(level, high))
