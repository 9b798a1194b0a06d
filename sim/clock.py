"""Simulated time is integer nanoseconds; seconds appear only at the edges."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Self

import simpy
from simpy.core import EmptySchedule

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


class Clock(simpy.Environment):
    """Counts the events it processes: a measure of work that no noisy machine disturbs."""

    num_events = 0
    last_ns = 0
    """Time of the last event that anyone waited for: the alarm of a jump that was cut is none."""
    acting = 0
    """Priority of the event being processed: those of this instant below it have been."""

    def step(self) -> None:
        """Process the next event, as `simpy.Environment.step` does; a run is never resumed."""
        if not self._queue:
            raise EmptySchedule
        now_ns, self.acting, _, event = heappop(self._queue)
        self._now = now_ns
        self.num_events += 1
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        if callbacks:
            if self.acting != UNSEEN:
                self.last_ns = now_ns  # type: ignore[assignment]  # an int: it starts at one
            for callback in callbacks:
                callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value


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
        self.priority = _FIRST_ENGINE + replica

    def ring(self, delay_ns: int = 0) -> Self:
        """Schedule it; once."""
        self._ok = True
        self._value = None
        self.env.schedule(self, priority=self.priority, delay=delay_ns)  # type: ignore[arg-type]
        return self

    def take_over(self, later: Alarm) -> None:
        """Wake, instead of a later alarm, whoever waits for that one."""
        self.callbacks.extend(later.callbacks)
        later.callbacks.clear()

    def void(self) -> None:
        """Wake nobody, if it has not."""
        if self.callbacks is not None:
            self.callbacks.clear()


class Timers:
    """Called off, they do not make a run any longer."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._pending: dict[simpy.Event, None] = {}
        self._stopped = False

    def after(self, delay_ns: int, call: Callable[[], None]) -> simpy.Event:
        """Call once, so many nanoseconds from now."""
        event = self._env.timeout(delay_ns)
        if self._stopped:
            return event

        def fire(_: simpy.Event) -> None:
            del self._pending[event]
            call()

        event.callbacks.append(fire)
        self._pending[event] = None
        return event

    def off(self, event: simpy.Event) -> None:
        """Do not call, if it has not."""
        if self._pending.pop(event, event) is None:
            event.callbacks.clear()

    def stop(self) -> None:
        """Call off all, and whatever is asked for later."""
        self._stopped = True
        for event in self._pending:
            event.callbacks.clear()
        self._pending.clear()
