"""A progress bar for a command that simulates."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

Progress = Callable[[int, int], None]
"""Called with what is done and the total."""
_Result = TypeVar("_Result")


def with_progress(run: Callable[[Progress | None], _Result]) -> _Result:
    """Call ``run`` with what shows its progress on stderr, or with None if that is no terminal."""
    if not sys.stderr.isatty():
        return run(None)
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        return run(lambda done, total: bar.update(task, completed=done, total=total))
