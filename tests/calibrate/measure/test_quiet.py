"""Timings on a processor that other processes use too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.measure import timing
from calibrate.measure.quiet import Waiting, is_quiet, quiet_repeats

REPEATS = st.lists(
    st.tuples(st.floats(1e-6, 1.0), st.one_of(st.just(0.0), st.floats(0.0, 1.0))), min_size=1
)


@given(REPEATS)
def test_only_undisturbed_repeats_count(repeats: list[tuple[float, float]]) -> None:
    seconds, waited = [s for s, _ in repeats], [w for _, w in repeats]
    found = quiet_repeats(seconds, waited)
    quiet = [s for s, w in repeats if is_quiet(s, w)]
    assert found == quiet if quiet else found == [min(seconds)]


def test_waiting_is_counted_and_grows() -> None:
    with Waiting() as waiting:
        before = waiting.seconds()
        sum(range(100_000))
        assert 0.0 <= before <= waiting.seconds()
    assert waiting.seconds() == 0.0


@pytest.mark.parametrize("disturbed", [0, 3])
def test_a_call_that_is_often_interrupted_takes_as_long_as_one_that_is_not(
    disturbed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delays ``disturbed`` of every four calls by 20 ms."""
    clock = SimpleNamespace(now=0.0, waited=0.0, calls=0)

    class Counted(Waiting):
        def seconds(self) -> float:
            return float(clock.waited)

    def call() -> None:
        clock.calls += 1
        clock.now += 1e-3
        if clock.calls % 4 < disturbed:
            clock.now += 20e-3
            clock.waited += 20e-3

    monkeypatch.setattr(timing, "Waiting", Counted)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    found = timing._on_host([call], float, most_s=0.05, before=lambda: None)
    assert found.seconds == pytest.approx(1e-3)
    assert found.repeats >= 5
