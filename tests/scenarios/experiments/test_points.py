"""The core of every experiment: each point is run once, and whoever watches is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scenarios.experiments.capacity.find import find_capacity
from scenarios.experiments.capacity.question import Question
from scenarios.experiments.plan.candidates import asked
from scenarios.experiments.plan.find import find_plan
from scenarios.experiments.points import Point, run_points, seeded_points, simulated
from scenarios.experiments.whatif.changes import changes_from_sets
from scenarios.experiments.whatif.comparison import what_if
from scenarios.files.identity import result_address
from scenarios.files.load import parse_scenario
from scenarios.run.execution import WorkerLostError
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import shown_progress
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from tests.properties.scenarios import small
from tests.scenarios.experiments.plan.samples import PLAN

HERE = Workers(jobs=1)


def points(seeds: range = range(4)) -> list[Point]:
    return seeded_points(parse_scenario(small()), seeds, {"name": "small"})


class Counted:
    """A run that notes the seeds it was called with."""

    def __init__(self, refused: int | None = None) -> None:
        self.seeds: list[int] = []
        self.refused = refused

    def __call__(self, point: Point) -> int:
        if point.seed == self.refused:
            raise ScenarioError("refused")
        self.seeds.append(point.seed)
        return 10 * point.seed


def test_results_come_in_order_and_equal_points_are_run_once() -> None:
    run = Counted()
    asked = [*points(), *reversed(points())]
    assert run_points(asked, run, HERE, memo={}) == [0, 10, 20, 30, 30, 20, 10, 0]
    assert run.seeds == [0, 1, 2, 3]


def test_a_later_call_runs_only_what_the_memo_lacks_even_after_an_error() -> None:
    memo: dict[str, int] = {}
    with pytest.raises(ScenarioError, match="refused"):
        run_points(points(), Counted(refused=2), HERE, memo=memo)
    run = Counted()
    assert run_points(points(), run, HERE, memo=memo) == [0, 10, 20, 30]
    assert run.seeds == [2, 3]


def test_an_address_is_of_the_scenario_and_its_seed_not_of_labels() -> None:
    scenario = parse_scenario(small())
    one, other = (seeded_points(scenario, [0], {"name": name})[0] for name in "ab")
    assert one.address == other.address
    assert len({point.address for point in points()}) == 4
    assert [point.scenario.replications for point in points()] == [1] * 4
    assert not any(point.scenario.bands for point in points())


def test_who_watches_is_told_of_what_was_known_and_of_what_failed() -> None:
    told: list[tuple[int, int, str, int]] = []

    def progress(done: int, total: int, *, task: str = "", failed: int = 0) -> None:
        told.append((done, total, task, failed))

    first, second, third = points(range(3))
    run_points(
        [first, second, third],
        Counted(),
        HERE,
        memo={second.address: -1},
        has_failed=lambda result: result < 0 or result == 20,
        progress=progress,
        task="trying",
    )
    assert told == [(1, 3, "trying", 1), (2, 3, "trying", 1), (3, 3, "trying", 2)]


class Losing(Workers):
    """Workers that are killed by the point of seed 3."""

    def spread(self, function: Any, items: Sequence[Any]) -> Any:
        for index, point in enumerate(items):
            yield index, WorkerLostError("killed") if point.seed == 3 else function(point)


def test_a_point_that_kills_its_worker_is_an_error_or_what_the_caller_keeps_of_it() -> None:
    with pytest.raises(WorkerLostError, match="name small, seed 3: killed"):
        run_points(points(), Counted(), Losing(), memo={})

    def kept(point: Point, outcome: int | WorkerLostError) -> int:
        return -1 if isinstance(outcome, WorkerLostError) else outcome

    assert run_points(points(), Counted(), Losing(), memo={}, keep=kept) == [0, 10, 20, -1]


def mean_ttft_s(result: RunResult) -> float | None:
    return result.figure("ttft", "mean")


def test_in_any_number_of_processes_results_are_equal() -> None:
    run = partial(simulated, reduce=mean_ttft_s)
    one: list[float | None] = run_points(points(), run, Workers(jobs=1), memo={})
    two: list[float | None] = run_points(points(), run, Workers(jobs=2), memo={})
    assert one == two
    assert len(set(one)) == 4


def ask_capacity() -> Any:
    question = Question(
        attainment=0.9, precision=0.2, num_requests=100, bands=False, load=40.0, check=True
    )
    scenario = parse_scenario(small() | {"slo": {"ttft_s": 0.3}})
    return find_capacity(scenario, question, jobs=1)["answer"]["capacity"]


def ask_plan() -> Any:
    return find_plan(asked(deepcopy(PLAN), {(): "test"}, folder=Path()), jobs=1)["ranked"]


def ask_whatif() -> Any:
    changes = changes_from_sets(["engine.tensor_parallel_size=1", "engine.tensor_parallel_size=2"])
    return what_if(small(), changes, replications=2, jobs=1).content["variants"]


@pytest.mark.parametrize("ask", [ask_capacity, ask_plan, ask_whatif])
def test_an_experiment_simulates_no_point_twice(
    ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def noted(scenario: Scenario) -> RunResult:
        seen.append(result_address(scenario))
        return simulate(scenario)

    monkeypatch.setattr("scenarios.experiments.points.simulate", noted)
    assert ask()
    assert len(seen) > 3
    assert len(set(seen)) == len(seen)


def test_a_worker_with_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = points()[0]
    monkeypatch.setattr("scenarios.files.identity.code_address", lambda: "of another version")
    with pytest.raises(ScenarioError, match="another fleetcast"):
        simulated(point, reduce=mean_ttft_s)


def test_where_there_is_no_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 10.0, 40.0])
    monkeypatch.setattr("scenarios.run.progress.time.monotonic", lambda: next(clock))
    with shown_progress(lines=True) as progress:
        assert progress is not None
        for done in (1, 2, 5):
            progress(done, 13, failed=done // 5)
    assert capsys.readouterr().err == "5 of 13 runs, 1 failed, about 80 s left\n"
    with shown_progress() as progress:
        assert progress is None
