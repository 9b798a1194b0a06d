"""Show on stderr how far a task is: a bar in a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_EVERY_S = 30.0
_TASK = "simulating"


class Progress(Protocol):
    """Who is told how far a task is."""

    def __call__(self, done: int, total: int, *, task: str = _TASK, failed: int = 0) -> None:
        """Take the numbers of what is done, of all there is to do, and of what failed."""


@contextmanager
def shown_progress(unit: str = "runs", *, lines: bool = False) -> Iterator[Progress | None]:
    """Yield what shows progress and the time left on stderr; None if nobody would see it.

    ``unit`` names what is counted. With ``lines`` a line is printed every half minute where stderr
    is no terminal.
    """
    if not sys.stderr.isatty():
        yield _Lines(unit) if lines else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit},"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(_TASK, total=None)

        def show(done: int, total: int, *, task: str = _TASK, failed: int = 0) -> None:
            words = f"{task}, {failed:,} failed" if failed else task
            if done < bar.tasks[0].completed:  # another batch of runs, whose pace is its own
                bar.reset(row)
            bar.update(row, completed=done, total=total, description=words)

        yield show


class _Lines:
    """Print a line every half minute, with the time left at the pace so far."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._started_s = self._said_s = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, *, task: str = _TASK, failed: int = 0) -> None:
        now_s = time.monotonic()
        if self._first is None:
            self._first = done
        if now_s - self._said_s < _EVERY_S or done == self._first:
            return
        self._said_s = now_s
        left_s = (now_s - self._started_s) / (done - self._first) * (total - done)
        words = f", {failed:,} failed" if failed else ""
        print(
            f"{done:,} of {total:,} {self._unit}{words}, about {_duration_text(left_s)} left",
            file=sys.stderr,
            flush=True,
        )


def _duration_text(seconds: float) -> str:
    """Return a duration in short: ``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
