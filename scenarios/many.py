"""Many simulations at once, over the cores of this machine, with the same results on any number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from scenarios.schema import Scenario
from scenarios.simulate import RunResult, simulate

T = TypeVar("T")


def run_many(
    scenarios: Sequence[Scenario],
    reduce: Callable[[RunResult], T],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[T]:
    """Simulate each scenario and keep what ``reduce`` makes of its result, in order.

    ``reduce`` is a function of a module (it travels to other processes), and what it returns is
    all that comes back: a run's logs stay where they were made. ``jobs`` is how many processes,
    None for one a core; one runs here. ``progress(done, total)`` is called after each. Raises what
    `simulate` raises, of the first scenario that fails.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(scenarios))
    if jobs <= 1:
        return list(_noted((_one(s, reduce) for s in scenarios), len(scenarios), progress))
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, return_as="generator")
    results = parallel(delayed(_one)(scenario, reduce) for scenario in scenarios)
    return list(_noted(results, len(scenarios), progress))


def _one(scenario: Scenario, reduce: Callable[[RunResult], T]) -> T:
    return reduce(simulate(scenario))


def _noted(
    results: Iterable[T], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[T]:
    for done, result in enumerate(results, 1):
        if progress is not None:
            progress(done, total)
        yield result
