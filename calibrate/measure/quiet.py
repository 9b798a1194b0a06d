"""Keep timings on a processor honest: detect disturbance by other processes, and clear the caches.

Linux counts, for each thread, the time it was ready to run without a free processor. A repeat with
more than a little of that shows how busy the machine is, not how long the call takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

_NS_PER_S = 1e9
_MOST_WAITING = 0.02
"""Largest share of a repeat that its threads may have waited."""
_TASKS = "/proc/self/task"
_SCRUB_NUMBERS = 2**22
"""16 MB, which is several times what a few cores have to themselves."""


class Waiting:
    """Measures how long this process's threads have waited for a processor. Threads that start
    later are not included. The result is 0 on systems without such counts."""

    def __init__(self) -> None:
        self._files: list[int] = []
        try:
            for thread in os.listdir(_TASKS):
                self._files.append(os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY))
        except OSError:
            self.close()

    def seconds(self) -> float:
        """Return the total waiting time of all threads, since each began."""
        waited_ns = 0
        for file in self._files:
            try:
                waited_ns += int(os.pread(file, 64, 0).split()[1])
            except (OSError, IndexError):  # the thread has ended
                continue
        return waited_ns / _NS_PER_S

    def close(self) -> None:
        """Close the files that are read."""
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_quiet(seconds: float, waited: float) -> bool:
    """Return whether a repeat of ``seconds`` during which threads ``waited`` was undisturbed."""
    return waited <= _MOST_WAITING * seconds


def quiet_repeats(seconds: Sequence[float], waited: Sequence[float]) -> list[float]:
    """Return the seconds of the undisturbed repeats, or of the shortest one if there are none."""
    quiet = [s for s, w in zip(seconds, waited, strict=True) if is_quiet(s, w)]
    return quiet or [min(seconds)]


@lru_cache(maxsize=1)
def scrubber() -> Callable[[], object]:
    """Return a function that leaves the cores' caches as the other operators of a step do: full
    of other data, and without the code of the next operator."""
    import torch

    numbers = torch.zeros(_SCRUB_NUMBERS)
    return lambda: numbers.add_(1.0)
