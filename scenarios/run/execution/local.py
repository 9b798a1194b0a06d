"""Processes of this machine, from joblib's pool, which is kept from one call to the next."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from scenarios.run.execution import WorkerLostError

T = TypeVar("T")
R = TypeVar("R")

_TOGETHER = 2
"""Losses shared with other items after which an item is tried alone, to see if it is the cause."""
_IDLE_S = 300
# A simulation uses one thread; more would only compete for the cores of other workers.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


def run_local(
    function: Callable[[T], R], items: Sequence[T], jobs: int
) -> Iterator[tuple[int, R | WorkerLostError]]:
    """Do what `scenarios.run.execution.workers.spread` does, on ``jobs`` processes.

    When a process dies, everything that was running is run again, because the pool does not say
    which item it had.
    """
    from concurrent.futures.process import BrokenProcessPool

    waiting, alone = deque(range(len(items))), deque[int]()
    running: dict[Future[R], int] = {}
    losses: Counter[int] = Counter()
    try:
        while waiting or running or alone:
            pool, is_broken = _pool(jobs), False
            queue, most = (alone, 1) if not waiting and not running else (waiting, 2 * jobs)
            while queue and len(running) < most:  # two per process, so that none is ever idle
                try:
                    future = pool.submit(_called, function, items[queue[0]])
                # it broke just now: the futures below show it, or a new pool starts
                except BrokenProcessPool:
                    break
                running[future] = queue.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED) if running else ((), ())
            for future in done:
                if isinstance(future.exception(), BrokenProcessPool):
                    is_broken = True
                    continue
                yield running.pop(future), future.result()
            if not is_broken:
                continue
            lost, was_alone = sorted(running.values()), len(running) == 1 and not waiting
            running.clear()
            losses.update(lost)
            for index in lost:
                if losses[index] > _TOGETHER and was_alone:
                    yield index, WorkerLostError(_words(losses[index]))
                else:
                    (alone if losses[index] >= _TOGETHER else waiting).append(index)
    finally:
        if running:  # the caller gave up: stop the work that is still running
            _pool(jobs).shutdown(wait=False, kill_workers=True)


def _words(losses: int) -> str:
    return (
        f"its process ended {losses} times while it ran, the last time alone: killed from outside, "
        "or out of memory"
    )


def _pool(jobs: int) -> Any:
    """Return the current pool, or a new one if it broke or had another size."""
    from joblib.externals.loky import get_reusable_executor

    return get_reusable_executor(
        max_workers=jobs,
        timeout=_IDLE_S,
        env=_ONE_THREAD,
        initializer=_end_with,
        initargs=(os.getpid(),),
    )


def _called(function: Callable[[T], R], item: T) -> R:
    """Call the function, and exempt what is loaded by then from garbage collection.

    The pool collects garbage every second, which takes 20 ms with everything that a simulation
    imports.
    """
    result = function(item)
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    return result


def _end_with(parent: int) -> None:
    """End this worker within about a second if its parent was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
