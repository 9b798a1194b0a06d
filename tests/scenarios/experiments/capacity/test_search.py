"""The capacity search on queues whose capacity is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scenarios.experiments.capacity.estimate import crossing, half_width, monotone
from scenarios.experiments.capacity.search import Goal, Tally, Trial, search
from tests.scenarios.experiments.capacity.queues import (
    COARSE,
    mm1_capacity,
    mm1_target_s,
    queue,
    simulated,
)

GOAL = Goal(attainment=0.99, units=2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [0.5, 0.75, 0.9])
def test_mm1_capacity_is_that_of_theory(capacity: float, seed: int) -> None:
    """At least 90 of 100 seeds are within the 2% asked for, and all are within 3%."""
    target_s = mm1_target_s(capacity, 0.99)
    found = search(queue(target_s, seed=seed), COARSE, GOAL)
    assert found.limit == "slo"
    assert found.capacity is not None
    assert found.capacity.precision <= 0.02
    assert mm1_capacity(target_s, 0.99) == pytest.approx(capacity)
    assert found.capacity.level == pytest.approx(capacity, rel=0.03)


def test_intervals_cover_the_capacity() -> None:
    """95% intervals of 40 searches; stopping when narrow costs a little of their cover."""
    covered = 0
    for seed in range(40):
        run = queue(mm1_target_s(0.6, 0.95), seed=seed, requests=4_000, warmup=400)
        found = search(run, COARSE, Goal(attainment=0.95, precision=0.03, units=2))
        assert found.capacity is not None
        covered += found.capacity.low <= 0.6 <= found.capacity.high
    assert covered >= 34


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_mm1_capacity_from_the_simulator(seed: int) -> None:
    """The engine, serving one request per step, has the capacity of theory: asked for 1.5%,
    within 2%."""
    goal = Goal(attainment=0.95, precision=0.015)
    run = queue(mm1_target_s(0.6, 0.95), seed=seed, requests=4_000, blocks=1, sojourns=simulated)
    found = search(run, COARSE, goal)
    assert found.capacity is not None
    assert found.capacity.level == pytest.approx(0.6, rel=0.02)


def test_the_simulator_is_the_queue() -> None:
    """What the slow test rests on: both ways give the same counts."""
    points = [(0.8, 0), (0.5, 1)]
    target_s = mm1_target_s(0.7, 0.9)
    theory, engine = (
        queue(target_s, seed=1, requests=800, warmup=100, **more)(points)  # type: ignore[arg-type]
        for more in ({}, {"sojourns": simulated})
    )
    assert [t.good for t in theory] == [t.good for t in engine]
    assert [t.arrived for t in engine] == [(400, 400), (400, 400)]


def test_an_overloaded_queue_never_counts() -> None:
    """A target so loose that a finite run meets it at any rate: the queue ends the range."""
    found = search(queue(1e6, seed=0), COARSE, GOAL)
    assert found.limit == "stability"
    assert found.capacity is not None
    assert found.capacity.level == pytest.approx(1.0, rel=0.02)
    assert found.capacity.level <= found.near[-1]
    overloaded = [level for level in found.samples.levels if level >= 1.05]
    assert overloaded
    assert all(found.samples.attainment(level) == 1 for level in overloaded)
    assert not any(found.samples.keeps(level) for level in overloaded)


def test_the_stable_rate_asks_for_no_slo() -> None:
    """Whatever the targets, the queue alone counts."""
    goal = Goal(attainment=0.99, units=2, any_attainment=True)
    found = search(queue(0.001, seed=0), COARSE, goal)
    assert found.limit == "stability"
    assert found.capacity is not None
    assert found.capacity.level == pytest.approx(1.0, rel=0.02)


def test_no_load_keeps_an_impossible_slo() -> None:
    found = search(queue(0.5, seed=0, requests=500, warmup=0), COARSE, GOAL)
    assert found.limit == "none met"
    assert found.capacity is None
    assert min(found.samples.levels) < COARSE[0] / 100


def cliff(most: float) -> object:
    """Every request is good up to a load, none above."""

    def run(points: Sequence[Trial]) -> list[Tally]:
        return [
            Tally(good=(1000, 1000) if level <= most else (0, 0), arrived=(1000, 1000))
            for level, _ in points
        ]

    return run


@given(most=st.integers(1, 3000))
def test_users_are_whole_numbers(most: int) -> None:
    """On a cliff, few users are found exactly and many within the precision; none too many."""
    goal = Goal(attainment=0.99, integer=True, queue_may_grow=True, units=2)
    found = search(cliff(most), [1, 4, 16, 64, 256], goal)  # type: ignore[arg-type]
    assert found.limit == "slo"
    assert found.capacity is not None
    assert found.capacity.level == int(found.capacity.level)
    assert found.capacity.low <= most <= found.capacity.high
    assert found.capacity.level == pytest.approx(most, rel=0.04 if most > 100 else 0)


@given(most=st.floats(0.02, 3))
def test_a_cliff_lies_in_the_interval(most: float) -> None:
    """The interval of a step change holds the loads on both sides, because capacity is not
    interpolated across it."""
    found = search(cliff(most), COARSE, GOAL)  # type: ignore[arg-type]
    assert found.capacity is not None
    assert found.capacity.low * (1 - 1e-9) <= most <= found.capacity.high * (1 + 1e-9)
    assert found.capacity.precision < 0.05


def test_no_limit_is_said_to_be_none() -> None:
    goal = Goal(attainment=0.99, integer=True, queue_may_grow=True)
    found = search(cliff(1e12), [1, 4, 16], goal)  # type: ignore[arg-type]
    assert found.limit == "none found"
    assert found.capacity is None
    assert max(found.samples.levels) >= 1000


def test_replications_are_the_same_for_every_load() -> None:
    """Common random numbers: replication r of any load has the seed of replication r."""
    asked: list[Trial] = []
    run = queue(mm1_target_s(0.5, 0.99), seed=0)

    def noted(points: Sequence[Trial]) -> list[Tally]:
        asked.extend(points)
        return run(points)

    found = search(noted, COARSE, GOAL)
    assert len(set(asked)) == len(asked)  # nothing is run twice
    for level in found.near:
        replications = sorted(r for at, r in asked if at == level)
        assert replications == list(range(len(replications)))
        assert len(replications) >= found.replications >= GOAL.least


def test_crossing_of_a_known_curve() -> None:
    """Misses of 0.5%, 1% and 2% at 10, 12 and 14: the target of 1% is crossed at 12."""
    arrived = np.full((3, 4), 10_000)
    good = arrived - np.array([50, 100, 200])[:, None]
    found = crossing(np.array([10.0, 12.0, 14.0]), good, arrived, 0.99)
    assert found.level == pytest.approx(12, rel=1e-6)
    assert found.low == pytest.approx(found.high)  # all units agree


def test_disagreeing_units_widen_the_interval() -> None:
    levels, arrived = np.array([10.0, 14.0]), np.full((2, 6), 5_000)
    spread = np.array([-20, 20, -10, 10, 0, 0])
    narrow, wide = (
        crossing(levels, arrived - np.array([[25], [100]]) + k * spread, arrived, 0.99)
        for k in (0, 1)
    )
    assert narrow.precision < 1e-6 < 0.02 < wide.precision
    assert wide.low < narrow.level < wide.high


@given(values=arrays(float, st.integers(1, 30), elements=st.floats(-5, 5)))
def test_monotone_fit(values: np.ndarray) -> None:
    """Non-decreasing, the same mean, and values that were in order stay."""
    fitted = monotone(values, np.ones(len(values)))
    assert (np.diff(fitted) >= 0).all()
    assert fitted.mean() == pytest.approx(values.mean(), abs=1e-9)
    assert monotone(np.sort(values), np.ones(len(values))) == pytest.approx(np.sort(values))


def test_half_width_is_students() -> None:
    assert half_width(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(
        3.182446 * 0.645497, rel=1e-5
    )
    assert half_width(np.array([7.0])) == 0
