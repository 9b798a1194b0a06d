"""Functions for worker processes, with few imports because each process starts from scratch."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


def refuse_three(number: int) -> int:
    """Return the number, but raise `ValueError` for 3."""
    if number == 3:
        raise ValueError("three")
    return number


def die_once(number: int, folder: str) -> int:
    """Takes its process down the first time it is asked for 3."""
    mark = Path(folder) / "died"
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die_always(number: int) -> int:
    """Takes its process down for 3."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number
