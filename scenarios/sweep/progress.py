"""How far a sweep is: a bar on a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from scenarios.sweep.run import Progress

_EVERY_S = 30.0


@contextmanager
def shown() -> Iterator[Progress]:
    """What is to be called after each run; it writes to stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)

        def show(done: int, total: int, failed: int) -> None:
            words = f"simulating, {failed:,} failed" if failed else "simulating"
            bar.update(task, completed=done, total=total, description=words)

        yield show


class _Lines:
    """A line every half minute, with the time left at the pace so far."""

    def __init__(self) -> None:
        self._started_s = self._said_s = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, failed: int) -> None:
        now_s = time.monotonic()
        if self._first is None:
            self._first = done
        if now_s - self._said_s < _EVERY_S or done == self._first:
            return
        self._said_s = now_s
        left_s = (now_s - self._started_s) / (done - self._first) * (total - done)
        words = f", {failed:,} failed" if failed else ""
        print(
            f"{done:,} of {total:,} runs{words}, about {time_text(left_s)} left",
            file=sys.stderr,
            flush=True,
        )


def time_text(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
