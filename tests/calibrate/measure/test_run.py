"""Wrong kernels are not timed, failures are refused with a reason, and the time budget is kept."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from calibrate.measure import bench, timing
from calibrate.measure import run as running
from calibrate.measure.plan import Plan
from calibrate.measure.run import Counts, DeviceLostError, Record, Run
from calibrate.measure.timing import Pacer, Waiting, time_calls
from tests.calibrate.measure.measure_modules import case, module, planned

MACHINE = {"kind": "machine", "id": "abc", "device": "made up"}


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "machine_line", lambda device: MACHINE)
    monkeypatch.setattr(timing, "scrubber", lambda: lambda: None)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that others use too is tried for longer."""
    monkeypatch.setattr(Waiting, "seconds", lambda self: 0.0)


def measure(
    path: Path, plan: Plan, budget_s: float = math.inf
) -> tuple[Counts, list[dict[str, Any]]]:
    record = Record(path, "made up")
    deadline = time.perf_counter() + budget_s
    try:
        left = plan.without(record.done)
        counts = Run(left, record, "cpu", 0, deadline, lambda text: None).all()
    finally:
        record.close()
    return counts, [json.loads(text) for text in path.read_text().splitlines()]


def test_timings_say_what_was_measured(tmp_path: Path) -> None:
    calls: list[int] = []
    plan = planned(module({"right": 1e-7}, calls), [case(1), case(2)])
    counts, found = measure(tmp_path / "out.jsonl", plan)
    assert (counts.timed, counts.refused, counts.left) == (2, 0, 0)
    assert found[0] == MACHINE
    assert [line["shape"]["size"] for line in found[1:]] == [1, 2]
    line = found[1]
    assert line["seconds_low"] <= line["seconds"] <= line["seconds_high"]
    assert line["machine"] == "abc"
    assert line["error"] == 1e-7
    assert (line["graph"], line["calls"], line["flops"], line["bytes"]) == (False, 1, 1.0, 1.0)
    assert line["repeats"] >= 5
    assert set(calls) == {1, 2}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (1e-3, "relative error 0.001, at most 1e-06"),
        (math.nan, "relative error nan"),
        (math.inf, "relative error inf"),
        (RuntimeError("no such\nshape"), "RuntimeError: no such shape"),
        (None, "has a reference to check it against"),
    ],
)
def test_a_kernel_that_is_wrong_or_unchecked_is_timed_at_no_shape(
    tmp_path: Path, error: Any, reason: str
) -> None:
    calls: list[int] = []
    plan = planned(module({"wrong": error, "right": 0.0}, calls), [case(1, "wrong"), case(2)])
    counts, found = measure(tmp_path / "out.jsonl", plan)
    assert (counts.timed, counts.refused) == (1, 1)
    assert found[1]["kind"] == "refused"
    assert reason in found[1]["reason"]
    assert 1 not in calls


def test_the_smallest_shape_speaks_for_those_too_large_to_check(tmp_path: Path) -> None:
    """A large case is right by itself, but its kernel is wrong at the smallest shape."""
    cases = [case(500, "wrong"), case(500)]
    plan = planned(module({"wrong": 1.0, "right": 0.0}), [case(1, "wrong"), *cases])
    only_large = Plan({"made_up": plan.families["made_up"][1:]}, plan.variants)
    counts, found = measure(tmp_path / "out.jsonl", only_large)
    assert (counts.timed, counts.refused) == (1, 1)
    assert "at {'size': 1}: relative error 1" in found[1]["reason"]


def test_shapes_that_a_kernel_refuses_do_not_stand_in_the_way_of_others(tmp_path: Path) -> None:
    plan = planned(module({"picky": ValueError("m is too small")}), [case(1, "picky")])
    large = planned(module({"picky": ValueError("m is too small")}), [case(200, "picky")])
    plan.families["made_up"] += large.families["made_up"]
    plan.variants[case(1, "picky").variant] += large.families["made_up"]
    counts, found = measure(tmp_path / "out.jsonl", plan)
    assert (counts.timed, counts.refused) == (1, 1)
    assert found[1]["reason"] == "ValueError: m is too small"


def test_a_wider_format_has_a_wider_tolerance(tmp_path: Path) -> None:
    plan = planned(module({"right": 0.05}), [case(1), case(1, number="loose")])
    counts, _ = measure(tmp_path / "out.jsonl", plan)
    assert (counts.timed, counts.refused) == (1, 1)


def test_no_case_is_begun_that_would_end_after_the_budget(tmp_path: Path) -> None:
    made = module({"right": 0.0}, call_s=2e-3)
    plan = planned(made, [case(size) for size in range(12)], seconds=0.06)
    start = time.perf_counter()
    counts, _ = measure(tmp_path / "out.jsonl", plan, budget_s=0.3)
    assert time.perf_counter() - start < 0.6
    assert 0 < counts.timed < 12
    assert counts.timed + counts.left == 12
    counts, found = measure(tmp_path / "out.jsonl", plan)
    assert counts.left == 0
    timed = [line["shape"]["size"] for line in found if line["kind"] == "timing"]
    assert sorted(timed) == list(range(12))


def test_every_family_gets_its_share_of_a_short_budget(tmp_path: Path) -> None:
    made = module({"right": 0.0}, call_s=2e-3)
    plan = planned(made, [case(size) for size in range(20)], seconds=0.06)
    other = planned(made, [_renamed(case(size)) for size in range(20)], seconds=0.06)
    plan.families["other"] = other.families["made_up"]
    plan.variants.update(other.variants)
    _, found = measure(tmp_path / "out.jsonl", plan, budget_s=0.6)
    timed = [line["family"] for line in found if line["kind"] == "timing"]
    assert timed.count("other") >= 2
    assert timed.count("made_up") >= 2


def _renamed(one: Any) -> Any:
    return type(one)(family="other", kernel=one.kernel, formats=one.formats, shape=one.shape)


def test_a_lost_device_ends_the_run_and_its_kernel_is_given_up_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case(size, "crash") for size in (1, 2, 3)]
    plan = planned(module({"crash": RuntimeError("illegal memory access")}), cases)
    with monkeypatch.context() as patched:
        patched.setattr(bench, "_is_lost", lambda device: True)
        for lost in (1, 2):
            with pytest.raises(DeviceLostError, match="illegal memory access"):
                measure(tmp_path / "out.jsonl", plan)
            written = (tmp_path / "out.jsonl").read_text()
            assert written.count('"device_lost":true') == lost
    counts, found = measure(tmp_path / "out.jsonl", plan)
    assert (counts.timed, counts.refused) == (0, 1)
    assert found[-1]["reason"] == "the device was lost 2 times by this kernel"


def test_what_measures_many_cases_together_refuses_those_it_could_not(tmp_path: Path) -> None:
    made = module({})

    def some(cases: Any, device: str, seed: int, until: float) -> Any:
        yield cases[0], {"seconds": 1.0}
        raise OSError("no ranks")

    made.measure, made.__name__ = some, "calibrate.measure.kernels.together"
    plan = planned(made, [case(1), case(2)])
    assert list(plan.units()) == ["together"]
    counts, found = measure(tmp_path / "out.jsonl", plan)
    assert (counts.timed, counts.refused, counts.left) == (1, 1, 0)
    assert found[-1]["reason"] == "OSError: no ranks"


def test_the_median_of_single_calls_is_the_time_of_a_call() -> None:
    prepared = module({"right": 0.0}).prepare(case(1), "cpu", 0)
    object.__setattr__(prepared, "calls", [lambda: time.sleep(2e-3)])
    timing = time_calls(prepared, "cpu", Pacer())
    assert 2e-3 <= timing.seconds < 20e-3
    assert timing.seconds_low <= timing.seconds <= timing.seconds_high


def test_a_device_rests_twice_as_long_as_it_worked() -> None:
    pacer = Pacer()
    pacer.wait()
    start = time.perf_counter()
    pacer.worked(0.01)
    pacer.wait()
    assert time.perf_counter() - start >= 0.02
