"""The core of every experiment: points, each simulated once, anywhere, with results in order.

What-if, capacity, sweep and plan differ in the points that they choose and in what they keep of
each run. Points with one seed see the same random numbers (common random numbers), so they differ
only by what their scenarios say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scenarios.build.memo import keep_between_runs
from scenarios.files.identity import result_address
from scenarios.run.execution import WorkerLostError
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from scenarios.run.replications import with_seed
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulation of an experiment."""

    scenario: Scenario
    labels: Mapping[str, Any]
    """What the experiment calls this point: its variant, its load, or its values of axes."""
    address: str
    """Address of the result; equal addresses mean equal results."""

    @property
    def seed(self) -> int:
        """The seed of everything random in the run."""
        return self.scenario.seed


def seeded_points(
    scenario: Scenario, seeds: Iterable[int], labels: Mapping[str, Any]
) -> list[Point]:
    """Return a point for each seed.

    Points have no error bands, because the model's own error is common to all of them.
    """
    plain = scenario.model_copy(update={"bands": False})
    seeded = [with_seed(plain, seed) for seed in seeds]
    return [Point(scenario=one, labels=labels, address=result_address(one)) for one in seeded]


def run_points(
    points: Sequence[Point],
    run: Callable[[Point], R],
    workers: Workers,
    *,
    memo: MutableMapping[str, R],
    keep: Callable[[Point, R | WorkerLostError], R] | None = None,
    has_failed: Callable[[R], bool] = lambda result: False,
    progress: Progress | None = None,
    task: str = "simulating",
) -> list[R]:
    """Run each point once and return the results in order.

    ``run`` is sent to the workers: `simulated` with a way to reduce results, or a function like it.
    ``memo`` holds results by address: what is in it is not run, and what is run is added to it as
    soon as it is there, so that a later call, also after an error, does not repeat it. ``keep``
    returns what is kept of a result, or of the error of a point that takes its worker down every
    time; without it that error is raised. ``has_failed`` tells which results ``progress`` counts as
    failed. Raises what ``run`` raises.
    """
    wanted = {point.address: point for point in points}
    todo = [point for address, point in wanted.items() if address not in memo]
    failed = sum(has_failed(memo[address]) for address in wanted if address in memo)
    known = len(wanted) - len(todo)
    if progress is not None:
        progress(known, len(wanted), task=task, failed=failed)
    for done, (index, outcome) in enumerate(workers.spread(run, todo), known + 1):
        point = todo[index]
        if keep is not None:
            result = keep(point, outcome)
        elif isinstance(outcome, WorkerLostError):
            names = ", ".join(f"{label} {value}" for label, value in point.labels.items())
            raise WorkerLostError(f"{names}, seed {point.seed}: {outcome}")
        else:
            result = outcome
        memo[point.address] = result
        failed += has_failed(result)
        if progress is not None:
            progress(done, len(wanted), task=task, failed=failed)
    return [memo[point.address] for point in points]


def simulated(point: Point, *, reduce: Callable[[RunResult], R]) -> R:
    """Simulate a point, in any process, and return what ``reduce`` makes of its result.

    A run's logs stay in the process that made them. Raises what `simulate` raises.
    """
    check_worker(point)
    return reduce(simulate(point.scenario))


def check_worker(point: Point) -> None:
    """Make this process a worker that keeps what runs share.

    Raises `ScenarioError` if it would compute something else than the process that made the point:
    other code, or other files where the scenario names some.
    """
    keep_between_runs()
    if result_address(point.scenario) != point.address:
        raise ScenarioError(
            "a worker has another fleetcast, other libraries, or other files than this machine: "
            "install the same on all, and put traces and calibrations where all find them by the "
            "same path"
        )
