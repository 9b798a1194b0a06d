"""Run on a Ray cluster: each item is a task, which Ray starts again when its worker dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from scenarios.run.execution import WorkerLostError
from sim.errors import ScenarioError

T = TypeVar("T")
R = TypeVar("R")

_RETRIES = 3
_IN_FLIGHT_PER_CPU = 2


@contextmanager
def ray_cluster(
    cluster: str, jobs: int | None
) -> Iterator[Callable[..., Iterator[tuple[int, Any]]]]:
    """Connect to the cluster of an address; what is yielded runs a function on items.

    ``ray`` means the cluster of this process, that of RAY_ADDRESS, or else a new local one of
    ``jobs`` workers, which ends with the connection. Workers need the same version of fleetcast.
    """
    ray = _import()
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, cluster, jobs)
    try:
        yield partial(_run, ray)
    finally:
        if is_ours:
            ray.shutdown()


def _run(
    ray: Any, function: Callable[[T], R], items: Sequence[T]
) -> Iterator[tuple[int, R | WorkerLostError]]:
    task = ray.remote(max_retries=_RETRIES, num_cpus=1)(_called)
    of_all = ray.put(function)
    cpus = int(ray.cluster_resources().get("CPU", 1))
    indices = iter(range(len(items)))
    running: dict[Any, int] = {}
    while True:
        while len(running) < _IN_FLIGHT_PER_CPU * cpus:
            index = next(indices, None)
            if index is None:
                break
            running[task.remote(of_all, items[index])] = index
        if not running:
            return
        done, _ = ray.wait(list(running), num_returns=1)
        for reference in done:
            index = running.pop(reference)
            try:
                yield index, ray.get(reference)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                yield index, WorkerLostError(f"its Ray worker ended {_RETRIES + 1} times: {error}")


def _called(function: Callable[[T], R], item: T) -> R:
    return function(item)


def _connect(ray: Any, cluster: str, jobs: int | None) -> None:
    named = cluster if cluster != "ray" else os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": named}
    if named is None:  # Ray itself would look for a cluster that another user started here
        options = {"address": "local", "log_to_driver": False, "logging_level": "ERROR"}
        options |= {"num_cpus": jobs, "include_dashboard": False}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ImportError) as error:
        raise ScenarioError(f"--cluster {cluster}: no Ray cluster answers: {error}") from None


def _import() -> Any:
    try:
        import ray
    except ImportError:
        raise ScenarioError(
            "--cluster ray needs Ray: pip install 'fleetcast[ray]' (in a checkout: pip install -e "
            "'.[ray]')"
        ) from None
    return ray
