"""Timing of GPU calls on an invented GPU, whose clock advances only with its own work and
pauses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.measure import timing
from calibrate.measure.case import Prepared
from calibrate.measure.timing import (
    Pacer,
    Timing,
    Waiting,
    foreseen_s,
    is_quiet,
    quiet_repeats,
    time_calls,
)

_CYCLES_PER_S = 2e9
LAUNCH_S = 4e-6
"""What an event around a call sees beside the call itself."""


class Gpu:
    """Stands for `torch.cuda` and for the time module."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.captured: list[float] | None = None
        self.bursts = [0.0]
        self.graphs = 0
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                CUDAGraph=lambda: Graph(self),
                Event=lambda enable_timing: Event(self),
                synchronize=lambda: None,
                _sleep=lambda cycles: self.work(cycles / _CYCLES_PER_S),
            )
        )
        self.time = SimpleNamespace(perf_counter=lambda: self.clock_s, sleep=self.rest)

    def work(self, seconds: float) -> None:
        if self.captured is not None:
            self.captured.append(seconds)
            return
        self.clock_s += seconds
        self.bursts[-1] += seconds

    def rest(self, seconds: float) -> None:
        if seconds > 0:
            self.clock_s += seconds
            self.bursts.append(0.0)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at_s = gpu, 0.0

    def record(self) -> None:
        self.at_s = self.gpu.clock_s

    def elapsed_time(self, end: Event) -> float:
        return (end.at_s - self.at_s + LAUNCH_S) * 1e3


class Graph:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.calls: list[float] = []

    def capture_begin(self, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.gpu.captured = []

    def capture_end(self) -> None:
        assert self.gpu.captured is not None
        self.calls, self.gpu.captured = self.gpu.captured, None

    def replay(self) -> None:
        for seconds in self.calls:
            self.gpu.work(seconds)


def timed(
    call_s: float, copies: int, agree: Callable[[float], float] = float, **how: Any
) -> tuple[Timing, Gpu]:
    gpu = Gpu()
    calls: list[Callable[[], object]] = [lambda: gpu.work(call_s) for _ in range(copies)]
    prepared = Prepared(calls=calls, error=None, flops=0.0, num_bytes=0.0, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", gpu.torch)
        patch.setattr(timing, "time", gpu.time)
        return time_calls(prepared, "cuda", Pacer(), agree), gpu


seconds_of_a_call = st.floats(-6, -1.5).map(lambda power: 10**power)


@settings(deadline=None)
@given(call_s=seconds_of_a_call, copies=st.integers(1, 64))
def test_a_call_in_a_graph_is_timed_to_a_percent(call_s: float, copies: int) -> None:
    found, _ = timed(call_s, copies)
    assert found.graph
    assert found.seconds == pytest.approx(call_s, rel=0.012)
    assert found.seconds_low <= found.seconds <= found.seconds_high
    assert 3 <= found.repeats <= 20
    whole_rounds = found.calls % copies == 0
    assert whole_rounds or found.calls == 1 or found.calls * call_s <= 11e-3


@settings(deadline=None)
@given(call_s=seconds_of_a_call, copies=st.integers(1, 64))
def test_work_comes_in_short_bursts_and_ends_soon(call_s: float, copies: int) -> None:
    _, gpu = timed(call_s, copies)
    warm_up, *bursts = gpu.bursts
    assert warm_up < 3.5e-2 + 4 * call_s
    assert all(burst <= max(16e-3, 1.01 * call_s) for burst in bursts)
    if call_s < 10e-3:
        assert gpu.clock_s < 0.25


@settings(deadline=None)
@given(call_s=seconds_of_a_call, copies=st.integers(1, 64))
def test_the_time_foreseen_is_about_the_time_taken(call_s: float, copies: int) -> None:
    _, gpu = timed(call_s, copies)
    foreseen = foreseen_s(call_s, copies, "cuda")
    assert foreseen == pytest.approx(gpu.clock_s, rel=0.4, abs=0.06)


@settings(deadline=None)
@given(call_s=seconds_of_a_call)
def test_calls_that_cannot_be_captured_are_timed_in_rows(call_s: float) -> None:
    found, _ = timed(call_s, 3, graphable=False)
    assert not found.graph
    assert 1 <= found.calls <= 16
    launch_share = LAUNCH_S / (found.calls * call_s)
    assert found.seconds == pytest.approx(call_s, rel=launch_share + 0.01)


def test_ranks_that_agree_call_equally_often() -> None:
    """The second rank sees other durations, and takes those of the first."""
    said: list[float] = []

    def say(seconds: float) -> float:
        said.append(seconds)
        return seconds

    for how in ({}, {"graphable": False}):
        said.clear()
        first, _ = timed(3e-5, 8, say, **how)
        heard = list(said)

        def hear(seconds: float, heard: list[float] = heard) -> float:
            return heard.pop(0)

        second, _ = timed(9e-5, 8, hear, **how)
        assert not heard
        assert (first.calls, first.repeats) == (second.calls, second.repeats)


def test_launching_is_timed_by_the_host() -> None:
    """The made-up clock moves in the call, as the host's does."""
    found, _ = timed(2e-5, 1, host_clock=True)
    assert (found.calls, found.graph) == (1, False)
    assert found.seconds == pytest.approx(2e-5)


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
