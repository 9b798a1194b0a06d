"""Run a function on many items, locally or on a cluster, with equal results in any order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from scenarios.files.trusted import PLUGINS
from scenarios.run.execution import WorkerLostError
from sim.errors import ScenarioError

T = TypeVar("T")
R = TypeVar("R")

KINDS = "ray, ray://HOST:PORT, dask, or a Dask scheduler's address such as tcp://HOST:PORT"


class Workers:
    """Processes of this machine, or a cluster that stays connected until the workers are closed."""

    def __init__(self, jobs: int | None = None, cluster: str | None = None) -> None:
        """Choose the workers; none is started yet.

        ``jobs`` is the number of processes on this machine, None for one per core; with one,
        everything runs in this process. ``cluster``: see `KINDS`; None for this machine. Raises
        `ScenarioError` for a cluster that is not named as one.
        """
        if cluster is not None:
            check_cluster(cluster)
        self.jobs, self.cluster = jobs, cluster
        self._open = ExitStack()
        self._on_cluster: Callable[..., Iterator[tuple[int, Any]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._on_cluster = None
        self._open.__exit__(kind, error, traceback)

    def spread(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Generator[tuple[int, R | WorkerLostError], None, None]:
        """Yield each item's position and what ``function`` returns for it, in order of completion.

        ``function`` is defined in a module (or is a ``functools.partial`` of such a function),
        because it and the items are sent to other processes. An item whose worker is killed is
        tried again; one that takes its worker down every time yields a `WorkerLostError`. What
        ``function`` raises is raised here, and the rest is given up. Raises `ScenarioError` if the
        cluster cannot be reached or its package is not installed.
        """
        trusted = os.environ.get(PLUGINS, "")
        if self.cluster is not None:
            if items:
                run = partial(_as_here, os.getcwd(), trusted, function)
                yield from self._connected(self.cluster)(run, items)
            return
        jobs = min(self.jobs or os.cpu_count() or 1, len(items))
        if jobs <= 1:
            yield from ((index, function(item)) for index, item in enumerate(items))
            return
        from scenarios.run.execution.local import run_local

        run = partial(_as_here, os.getcwd(), trusted, function)
        yield from run_local(run, items, jobs)

    def _connected(self, cluster: str) -> Callable[..., Iterator[tuple[int, Any]]]:
        if self._on_cluster is None:
            if _is_ray(cluster):
                from scenarios.run.execution.on_ray import ray_cluster as connect
            else:
                from scenarios.run.execution.on_dask import dask_cluster as connect
            self._on_cluster = self._open.enter_context(connect(cluster, self.jobs))
        return self._on_cluster


def spread(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    jobs: int | None = None,
    cluster: str | None = None,
) -> Generator[tuple[int, R | WorkerLostError], None, None]:
    """Do what `Workers.spread` does, with workers that are closed at the end."""
    with Workers(jobs, cluster) as workers:
        yield from workers.spread(function, items)


def _as_here(folder: str, trusted: str, function: Callable[[T], R], item: T) -> R:
    """Call the function in this folder, so that relative paths mean what they mean at home, and
    with the trusted folders of home.

    A worker that has no such folder stays where it is.
    """
    os.environ[PLUGINS] = trusted
    with suppress(OSError):
        os.chdir(folder)
    return function(item)


def check_cluster(cluster: str) -> None:
    """Raise `ScenarioError` if a cluster is not named as one, before anything is run."""
    if not _is_ray(cluster) and not _is_dask(cluster):
        raise ScenarioError(f"--cluster {cluster}: not a cluster; give {KINDS}")


def _is_ray(cluster: str) -> bool:
    return cluster == "ray" or cluster.startswith("ray://")


def _is_dask(cluster: str) -> bool:
    return cluster == "dask" or cluster.startswith(("tcp://", "tls://", "ucx://", "ws://"))
