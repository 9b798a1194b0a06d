"""Run a function on many items, locally or on a cluster, with equal results in any order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from scenarios.run.execution.errors import WorkerLostError
from sim.errors import ScenarioError

T = TypeVar("T")
R = TypeVar("R")

KINDS = "ray, ray://HOST:PORT, dask, or a Dask scheduler's address such as tcp://HOST:PORT"


def spread(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
) -> Generator[tuple[int, R | WorkerLostError], None, None]:
    """Yield each item's position and what ``function`` returns for it, in order of completion.

    ``function`` is defined in a module (or is a ``functools.partial`` of such a function), because
    it and the items are sent to other processes. ``jobs`` is the number of processes on this
    machine, None for one per core; with one, everything runs in this process. ``cluster``: see
    `KINDS`; None for this machine. An item whose worker is killed is tried again; one that takes
    its worker down every time yields a `WorkerLostError`. What ``function`` raises is raised here,
    and the rest is given up. Raises `ScenarioError` if the cluster cannot be reached or its package
    is not installed.
    """
    if cluster is not None:
        yield from _on_cluster(function, items, cluster, jobs)
        return
    jobs = min(jobs or os.cpu_count() or 1, len(items))
    if jobs <= 1:
        yield from ((index, function(item)) for index, item in enumerate(items))
        return
    from scenarios.run.execution.local import run_local

    yield from run_local(function, items, jobs)


def check_cluster(cluster: str) -> None:
    """Raise `ScenarioError` if a cluster is not named as one, before anything is run."""
    if not _is_ray(cluster) and not _is_dask(cluster):
        raise ScenarioError(f"--cluster {cluster}: not a cluster; give {KINDS}")


def _on_cluster(
    function: Callable[[T], R], items: Sequence[T], cluster: str, jobs: int | None
) -> Generator[tuple[int, R | WorkerLostError], None, None]:
    check_cluster(cluster)
    if not items:
        return
    if _is_ray(cluster):
        from scenarios.run.execution.on_ray import run_ray

        yield from run_ray(function, items, cluster, jobs)
    else:
        from scenarios.run.execution.on_dask import run_dask

        yield from run_dask(function, items, cluster, jobs)


def _is_ray(cluster: str) -> bool:
    return cluster == "ray" or cluster.startswith("ray://")


def _is_dask(cluster: str) -> bool:
    return cluster == "dask" or cluster.startswith(("tcp://", "tls://", "ucx://", "ws://"))
