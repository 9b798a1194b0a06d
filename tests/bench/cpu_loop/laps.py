"""Repeats of a step's parts, with the data that identifies the undisturbed ones."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

from calibrate.measure.timing import Waiting, is_quiet, quiet_repeats


class Laps:
    """Seconds of each part, repeat by repeat, and for how long this process's threads waited."""

    def __init__(self, waiting: Waiting) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.waited: dict[str, list[float]] = defaultdict(list)
        self._waiting = waiting
        self._start = self._waited = 0.0

    def start(self) -> None:
        """Before the first part."""
        self._waited = self._waiting.seconds()
        self._start = time.perf_counter()

    def mark(self, part: str) -> None:
        """A part has ended, the next begins."""
        end = time.perf_counter()
        waited = self._waiting.seconds()
        self.seconds[part].append(end - self._start)
        self.waited[part].append(waited - self._waited)
        self._waited = waited
        self._start = time.perf_counter()

    def median_s(self) -> dict[str, float]:
        """Return the median of each part over its undisturbed repeats, or its shortest repeat if
        all were disturbed."""
        return {
            part: median(quiet_repeats(seconds, self.waited[part]))
            for part, seconds in self.seconds.items()
        }

    def num_quiet(self) -> int:
        """Undisturbed repeats of the part that has the fewest."""
        return min(
            (sum(map(is_quiet, s, self.waited[part])) for part, s in self.seconds.items()),
            default=0,
        )
