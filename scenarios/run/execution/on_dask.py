"""Run on a Dask cluster: each item is a task, which the scheduler moves when its worker dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from scenarios.run.execution import WorkerLostError
from sim.errors import ScenarioError

T = TypeVar("T")
R = TypeVar("R")

_IN_FLIGHT_PER_THREAD = 2
_CONNECT_S = 20


@contextmanager
def dask_cluster(
    cluster: str, jobs: int | None
) -> Iterator[Callable[..., Iterator[tuple[int, Any]]]]:
    """Connect to a scheduler's address; what is yielded runs a function on items.

    ``dask`` means a new local cluster of ``jobs`` workers, which ends with the connection. Workers
    need the same version of fleetcast, and one thread each: a simulation leaves no time for a
    second thread.
    """
    distributed = _import()
    with ExitStack() as stack:
        address: Any = cluster
        if cluster == "dask":
            address = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=jobs, threads_per_worker=1, dashboard_address=None
                )
            )
        try:
            client = stack.enter_context(distributed.Client(address, timeout=_CONNECT_S))
        except OSError as error:
            raise ScenarioError(
                f"--cluster {cluster}: no Dask scheduler answers: {error}"
            ) from None
        yield partial(_run, distributed, client)


def _run(
    distributed: Any, client: Any, function: Callable[[T], R], items: Sequence[T]
) -> Iterator[tuple[int, R | WorkerLostError]]:
    """Run all items, then retry those suspected of killing their worker, each alone.

    Dask suspects everything that a dying worker held.
    """
    most = _IN_FLIGHT_PER_THREAD * (sum(client.nthreads().values()) or 1)
    suspects: list[int] = []
    for index, result in _in_flight(distributed, client, function, items, range(len(items)), most):
        if isinstance(result, WorkerLostError):
            suspects.append(index)
        else:
            yield index, result
    yield from _in_flight(distributed, client, function, items, suspects, 1)


def _in_flight(
    distributed: Any,
    client: Any,
    function: Callable[[T], R],
    items: Sequence[T],
    chosen: Sequence[int],
    most: int,
) -> Iterator[tuple[int, R | WorkerLostError]]:
    """Run the chosen items, at most ``most`` at a time."""
    queue = distributed.as_completed()
    index_of: dict[Any, int] = {}
    indices = iter(chosen)

    def submit_next() -> None:
        index = next(indices, None)
        if index is not None:
            # Send the function with each item: what is scattered to workers is lost when they die.
            future = client.submit(function, items[index], pure=False)
            index_of[future] = index
            queue.add(future)

    for _ in range(most):
        submit_next()
    for future in queue:
        index = index_of.pop(future)
        result: R | WorkerLostError
        try:
            result = future.result()
        except distributed.KilledWorker as error:
            result = WorkerLostError(f"every Dask worker that ran it ended: {error}")
        except distributed.CancelledError:
            raise ScenarioError("the Dask scheduler went away; what is done is kept") from None
        submit_next()
        yield index, result


def _import() -> Any:
    try:
        import distributed
    except ImportError:
        raise ScenarioError(
            "a Dask cluster needs Dask: pip install 'fleetcast[dask]' (in a checkout: pip install "
            "-e '.[dask]')"
        ) from None
    return distributed
