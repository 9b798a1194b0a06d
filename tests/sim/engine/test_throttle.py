"""Power throttling: its limit, its onset and recovery, and that accounts and jumps hold."""

from __future__ import annotations

import numpy as np
import pytest

from sim.draws import uniform
from sim.throttle import Heat, PowerThrottle

THROTTLE = PowerThrottle(slowdown=0.2, onset_s=0.08, recovery_s=0.05, full_load=0.5)
MS = 1_000_000


def test_a_cool_device_keeps_its_pace_and_a_hot_one_does_not() -> None:
    heat = Heat(THROTTLE)
    assert heat.stretch_ns(0, MS, MS) == pytest.approx(0.2 * MS * 0.5 / 80, rel=0.05)
    hot = Heat(THROTTLE, level=1.0)
    assert hot.stretch_ns(0, 100 * MS, 100 * MS) == 20 * MS
    assert Heat(None).stretch_ns(0, MS, MS) == 0


def test_cut_into_pieces_it_takes_as_long() -> None:
    whole = Heat(THROTTLE).stretch_ns(0, 100 * MS, 100 * MS)
    heat, now_ns = Heat(THROTTLE), 0
    for _ in range(100):
        now_ns += MS + heat.stretch_ns(now_ns, MS, MS)
    assert now_ns - 100 * MS == pytest.approx(whole, rel=0.03)


def test_it_recovers_in_pauses_with_its_time_constant() -> None:
    heat = Heat(THROTTLE, level=1.0)
    assert heat.level_at(0) == 1.0
    assert heat.level_at(50 * MS) == pytest.approx(np.exp(-1))


def test_steps_without_compute_do_not_touch_it() -> None:
    heat = Heat(THROTTLE, level=0.7)
    before = heat.level_at(10 * MS)
    assert heat.stretch_ns(5 * MS, MS, 0) == 0
    assert heat.level_at(10 * MS) == before


def test_a_step_half_bound_by_compute_is_a_full_load_here() -> None:
    half, full = Heat(THROTTLE), Heat(THROTTLE)
    assert half.stretch_ns(0, 40 * MS, 20 * MS) == full.stretch_ns(0, 40 * MS, 40 * MS)
    quarter = Heat(THROTTLE, level=1.0)
    for step in range(200):
        quarter.stretch_ns(step * 40 * MS, 40 * MS, 10 * MS)
    assert THROTTLE.lasting_ns(40 * MS, 10 * MS) == 4 * MS
    assert quarter.level_at(0) == pytest.approx(0.5, abs=0.01)


def test_draws_are_uniform_and_belong_to_the_request() -> None:
    draws = np.array([uniform(0, request, 0) for request in range(20_000)])
    assert 0 <= draws.min() < 0.001 < 0.999 < draws.max() < 1
    assert np.histogram(draws, 20, (0, 1))[0].min() > 850
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.03
    assert uniform(1, 7, 512) == uniform(1, 7, 512)
    assert len({uniform(0, 7, 0), uniform(1, 7, 0), uniform(0, 8, 0), uniform(0, 7, 1)}) == 4
