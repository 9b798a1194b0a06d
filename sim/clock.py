"""Simulated time is integer nanoseconds; seconds appear only at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import simpy

NS_PER_S = 1_000_000_000

# SimPy orders events of one instant by priority. Arrivals use its default, 1, so an arrival at the
# very end of a step is seen by the plan that follows; engines come after, in order of replica, so
# that simultaneous engines act in the same order however they got there.
_FIRST_ENGINE = 2

UNSEEN = -1
"""Priority of events that nobody waits for: content has been written somewhere. They come before
all else of their instant, and a run does not last until they have happened."""


def to_ns(seconds: float) -> int:
    """Round seconds to the nearest nanosecond (half to even). Rounded once, when priced."""
    return round(seconds * NS_PER_S)


def to_s(nanoseconds: float) -> float:
    """Nanoseconds as seconds, for results and messages."""
    return nanoseconds / NS_PER_S


def after_unseen(env: simpy.Environment, delay_ns: int, call: Callable[[], None]) -> None:
    """Call after so many nanoseconds, in an event that nobody waits for."""
    event = simpy.Event(env)
    event._ok, event._value = True, None
    event.callbacks.append(lambda _: call())
    env.schedule(event, priority=UNSEEN, delay=delay_ns)  # type: ignore[arg-type]


class Alarm(simpy.Event):
    """An engine's wake-up: fires ``delay_ns`` after it is rung, after that instant's arrivals."""

    def __init__(self, env: simpy.Environment, replica: int) -> None:
        self.env = env  # all of `Event.__init__`: an engine makes a few of these a request
        self.callbacks = []
        self._priority = _FIRST_ENGINE + replica

    def ring(self, delay_ns: int = 0) -> Self:
        """Schedule it; once."""
        self._ok = True
        self._value = None
        self.env.schedule(self, priority=self._priority, delay=delay_ns)  # type: ignore[arg-type]
        return self

    def take_over(self, later: Alarm) -> None:
        """Wake, instead of a later alarm, whoever waits for that one."""
        self.callbacks.extend(later.callbacks)
        later.callbacks.clear()

    def void(self) -> None:
        """Wake nobody, if it has not."""
        if self.callbacks is not None:
            self.callbacks.clear()
