"""Counts of all runs of a search so far, by load and replication."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from scenarios.experiments.capacity.estimate import Estimate, crossing, half_width, pooled_crossing
from sim.arrays import Int64

Point = tuple[float, int]
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
    run: Callable[[Sequence[Point]], Sequence[Tally]]
    """Runs points, on all available cores, and returns their tallies in order."""
    tallies: dict[float, dict[int, Tally]] = field(default_factory=dict)

    def add(self, levels: Collection[float], replications: int) -> None:
        """Run the missing replications of each load, up to ``replications``."""
        points = [
            (level, replication)
            for level in sorted(set(levels))
            for replication in range(replications)
            if replication not in self.tallies.get(level, {})
        ]
        for (level, replication), tally in zip(points, self.run(points), strict=True):
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
