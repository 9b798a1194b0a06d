"""What keeps timings on a processor honest: whether others disturbed them, and cold caches.

Linux counts, for each thread, the time it was ready to run and no processor was free. A repeat with
more than a little of that says how busy the machine is, not how long the call takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

_NS_PER_S = 1e9
_MOST_WAITING = 0.02
"""Share of a repeat that its threads may have waited."""
_TASKS = "/proc/self/task"
_SCRUB_NUMBERS = 2**22
"""16 MB: several times what a few cores have to themselves."""


class Waiting:
    """How long this process's threads have waited for a processor. A thread that starts later is
    not seen. Nothing is counted where the system does not count."""

    def __init__(self) -> None:
        self._files: list[int] = []
        try:
            for thread in os.listdir(_TASKS):
                self._files.append(os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY))
        except OSError:
            self.close()

    def seconds(self) -> float:
        """Of all threads together, since each began."""
        waited_ns = 0
        for file in self._files:
            try:
                waited_ns += int(os.pread(file, 64, 0).split()[1])
            except (OSError, IndexError):  # it has ended
                continue
        return waited_ns / _NS_PER_S

    def close(self) -> None:
        """Release what it reads from."""
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_quiet(seconds: float, waited: float) -> bool:
    """Whether a repeat of ``seconds`` during which threads ``waited`` was undisturbed."""
    return waited <= _MOST_WAITING * seconds


def quiet_repeats(seconds: Sequence[float], waited: Sequence[float]) -> list[float]:
    """The seconds of the undisturbed repeats; of the shortest one where there is none."""
    quiet = [s for s, w in zip(seconds, waited, strict=True) if is_quiet(s, w)]
    return quiet or [min(seconds)]


@lru_cache(maxsize=1)
def scrubber() -> Callable[[], object]:
    """A function that leaves the caches of the cores as the other operators of a step leave them:
    full of something else, the code of the operator to come not in them either."""
    import torch

    numbers = torch.zeros(_SCRUB_NUMBERS)
    return lambda: numbers.add_(1.0)
