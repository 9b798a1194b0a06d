"""Search the highest load that keeps the attainment: a grid, then replications near the crossing.

Every load is run with the same seeds (common random numbers), so that runs differ only by their
load. First a coarse grid over the whole range, run at once, shows where attainment crosses its
target; then a few loads around that get replications until the interval is as narrow as asked. A
load whose queue keeps growing is never kept, whatever its requests say, because a run ends before
an overloaded queue has become as long as it will.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scenarios.experiments.capacity.estimate import Estimate, crossing, half_width, pooled_crossing
from sim.arrays import Int64

Trial = tuple[float, int]
"""A load and a replication, counted from 0."""

_GROWING = 0.01
"""Growth of the number in the system per arrival that counts as overload: one percent."""
_ENOUGH = 4  # runs for an interval over runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of one run, over the requests that arrived in its measured part."""

    good: tuple[int, ...]
    """Good requests, by consecutive stretch of arrivals; every run has equally many stretches."""
    arrived: tuple[int, ...]
    growth: float = 0.0
    """Growth of the number in the system over the measured part, as a share of the arrivals."""
    growth_error: float = 0.0
    """Standard error of the growth, from how the number in the system scatters about its trend."""
    throughput: float = math.nan
    """Requests that left per second while others arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a search looks for, and how precisely."""

    attainment: float
    precision: float = 0.02
    """Half-width of the 95% interval, relative to the capacity."""
    integer: bool = False
    """Whether loads are whole numbers: users, not a rate."""
    first: int = 1
    """Replications of the coarse grid."""
    least: int = 8
    """Replications near the crossing, to begin with."""
    most: int = 64
    units: int = 1
    """Stretches of a run that are taken as independent; the run's stretches are a multiple of
    them."""
    any_attainment: bool = False
    """Whether only the queue counts, whatever the SLO."""
    queue_may_grow: bool = False
    """Whether a growing queue is ignored: it cannot grow in a closed loop; in an open loop it
    fails."""


@dataclass(kw_only=True)
class Samples:
    """The tallies of all runs so far."""

    goal: Goal
    run: Callable[[Sequence[Trial]], Sequence[Tally]]
    """Runs trials, on all available cores, and returns their tallies in order."""
    tallies: dict[float, dict[int, Tally]] = field(default_factory=dict)

    def add(self, levels: Collection[float], replications: int) -> None:
        """Run the missing replications of each load, up to ``replications``."""
        trials = [
            (level, replication)
            for level in sorted(set(levels))
            for replication in range(replications)
            if replication not in self.tallies.get(level, {})
        ]
        for (level, replication), tally in zip(trials, self.run(trials), strict=True):
            self.tallies.setdefault(level, {})[replication] = tally

    @property
    def levels(self) -> list[float]:
        """All loads that were run, in order."""
        return sorted(self.tallies)

    def of(self, level: float, replications: int | None = None) -> list[Tally]:
        """Return the tallies of a load: of its first ``replications``, or of all."""
        by_replication = self.tallies[level]
        return [by_replication[r] for r in sorted(by_replication)[:replications]]

    def counts(self, level: float, replications: int | None = None) -> tuple[int, int]:
        """Return the good and arrived requests of a load; all are good if only the queue counts."""
        tallies = self.of(level, replications)
        arrived = sum(sum(t.arrived) for t in tallies)
        return arrived if self.goal.any_attainment else sum(sum(t.good) for t in tallies), arrived

    def attainment(self, level: float) -> float | None:
        """Return good over arrived requests of a load; None if none arrived."""
        tallies = self.of(level)
        arrived = sum(sum(t.arrived) for t in tallies)
        return sum(sum(t.good) for t in tallies) / arrived if arrived else None

    def keeps(self, level: float, replications: int | None = None) -> bool:
        """Return whether a load keeps the attainment without a growing queue."""
        good, arrived = self.counts(level, replications)
        return self.is_stable(level) and good >= (self.goal.attainment - 1e-12) * arrived

    def is_stable(self, level: float) -> bool:
        """Return whether the number in the system does not grow, allowing for one standard
        error."""
        if self.goal.queue_may_grow:
            return True
        growth = np.array([tally.growth for tally in self.of(level)])
        within = np.mean([tally.growth_error for tally in self.of(level)])
        between = growth.std(ddof=1) if len(growth) > 1 else 0.0
        error = max(within, between) / math.sqrt(len(growth))
        return float(growth.mean() - error) <= _GROWING

    def interval(self, level: float) -> tuple[float, float]:
        """Return the 95% interval of a load's attainment, over its runs, or over stretches of a
        few runs."""
        tallies = self.of(level)
        good = np.array([tally.good for tally in tallies])
        arrived = np.array([tally.arrived for tally in tallies])
        if len(tallies) >= _ENOUGH:
            good, arrived = good.sum(axis=1), arrived.sum(axis=1)
        good, arrived = good.ravel(), arrived.ravel()
        share = good.sum() / arrived.sum()
        # The interval of a ratio of sums: each unit's good requests less its expected share.
        scatter = (good - share * arrived) / arrived.mean()
        half = half_width(scatter)
        return max(float(share) - half, 0.0), min(float(share) + half, 1.0)

    def bracket(self, levels: Sequence[float], replications: int) -> bool:
        """Return whether the lowest of these loads keeps the attainment and the highest does
        not."""
        return self.keeps(levels[0], replications) and not self.keeps(levels[-1], replications)

    def crossing(self) -> float:
        """Return roughly where the attainment is lost, from all runs; growing queues count as
        all lost."""
        counts = [self.counts(level) for level in self.levels]
        good = [
            kept if self.is_stable(level) else 0
            for level, (kept, _) in zip(self.levels, counts, strict=True)
        ]
        arrived = np.array([count for _, count in counts])
        return pooled_crossing(np.array(self.levels), np.array(good), arrived, self.goal.attainment)

    def estimate(self, levels: Sequence[float], replications: int) -> Estimate:
        """Estimate where the SLO alone would be lost, from the same replications of every load."""

        def by_unit(name: str) -> Int64:
            by_block = [[getattr(t, name) for t in self.of(at, replications)] for at in levels]
            units = np.array(by_block).reshape(len(levels), replications * self.goal.units, -1)
            summed: Int64 = units.sum(axis=2)
            return summed

        return crossing(np.array(levels), by_unit("good"), by_unit("arrived"), self.goal.attainment)


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
    run: Callable[[Sequence[Trial]], Sequence[Tally]], coarse: Sequence[float], goal: Goal
) -> Found:
    """Return the highest load that keeps ``goal.attainment``, starting from the loads ``coarse``.

    ``run`` is called with batches of independent trials and returns their tallies in order. The
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
