"""Many simulations at once, on this machine or a cluster, with the same results on any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from scenarios.execution.spread import WorkerLostError, spread
from scenarios.kept import keep_between_runs
from scenarios.schema import Scenario
from scenarios.simulate import RunResult, simulate

T = TypeVar("T")


def run_many(
    scenarios: Sequence[Scenario],
    reduce: Callable[[RunResult], T],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    cluster: str | None = None,
) -> list[T]:
    """Simulate each scenario and keep what ``reduce`` makes of its result, in order.

    ``reduce`` is a function of a module (it travels to other processes), and what it returns is
    all that comes back: a run's logs stay where they were made. ``jobs`` is how many processes,
    None for one a core; one runs here. ``cluster`` runs them there instead
    (`scenarios.execution.spread.KINDS`). ``progress(done, total)`` is called after each. Raises
    what `simulate` raises, of a scenario that fails, and WorkerLostError where one takes its
    process down every time.
    """
    results: list[Any] = [None] * len(scenarios)
    runs = spread(partial(_one, reduce=reduce), scenarios, jobs=jobs, cluster=cluster)
    for done, (index, result) in enumerate(runs, 1):
        if isinstance(result, WorkerLostError):
            raise result
        results[index] = result
        if progress is not None:
            progress(done, len(scenarios))
    return results


def _one(scenario: Scenario, *, reduce: Callable[[RunResult], T]) -> T:
    keep_between_runs()
    return reduce(simulate(scenario))
