"""Simulated time is integer nanoseconds; seconds appear only at the edges."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Self

import simpy
from simpy.core import EmptySchedule

NS_PER_S = 1_000_000_000
FOREVER_NS = 1 << 62
"""A time that never comes."""

# SimPy orders the events of one instant by priority. Arrivals use its default, 1, so that an
# arrival at the very end of a step is seen by the plan that follows. Engines come after, in order
# of replica, so that simultaneous engines always act in the same order.
_FIRST_ENGINE = 2

UNSEEN = -1
"""Priority of events that no process waits for, such as "this content has been written". They come
before all other events of their instant, and a run may end before they happen."""


def to_ns(seconds: float) -> int:
    """Round seconds to the nearest nanosecond, half to even. Done once, when a step is priced."""
    return round(seconds * NS_PER_S)


def to_s(nanoseconds: float) -> float:
    """Convert nanoseconds to seconds, for results and messages."""
    return nanoseconds / NS_PER_S


class Clock(simpy.Environment):
    """A SimPy environment that counts the events it processes: a measure of work free of noise."""

    num_events = 0
    now_ns = 0
    """The time, like `now`, but an attribute: engines read it several times per step."""
    last_ns = 0
    """Time of the last event that a process waited for. The alarm of a jump that was cut does not
    count."""
    acting = 0
    """Priority of the event being processed; events of this instant with a lower number are done.
    """

    def step(self) -> None:
        """Process the next event, as `simpy.Environment.step` does. A finished run is never
        resumed."""
        if not self._queue:
            raise EmptySchedule
        now_ns, self.acting, _, event = heappop(self._queue)
        self._now = self.now_ns = now_ns  # type: ignore[assignment]  # an int: it starts at one
        self.num_events += 1
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        if callbacks:
            if self.acting != UNSEEN:
                self.last_ns = self.now_ns
            for callback in callbacks:
                callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value


def call_after(env: simpy.Environment, delay_ns: int, call: Callable[[], None]) -> None:
    """Call ``call`` after ``delay_ns`` nanoseconds, or at once if there are none."""
    if not delay_ns:
        call()
        return
    env.timeout(delay_ns).callbacks.append(lambda _: call())


def after_unseen(env: simpy.Environment, delay_ns: int, call: Callable[[], None]) -> None:
    """Call ``call`` after ``delay_ns``, in an event that no process waits for."""
    event = simpy.Event(env)
    event._ok, event._value = True, None
    event.callbacks.append(lambda _: call())
    env.schedule(event, priority=UNSEEN, delay=delay_ns)  # type: ignore[arg-type]


class Alarm(simpy.Event):
    """An engine's wake-up. It fires ``delay_ns`` after `ring`, after the arrivals of that
    instant."""

    def __init__(self, env: Clock, replica: int) -> None:
        # all that `Event.__init__` does, inlined: an engine makes several of these per request
        self.env = env
        self.callbacks = []
        self.priority = _FIRST_ENGINE + replica

    def ring(self, delay_ns: int = 0) -> Self:
        """Schedule the alarm; allowed once."""
        self._ok = True
        self._value = None
        # what `Environment.schedule` does, inlined as well
        env: Clock = self.env  # type: ignore[assignment]
        heappush(env._queue, (env.now_ns + delay_ns, self.priority, next(env._eid), self))  # type: ignore[misc]
        return self

    def take_over(self, later: Alarm) -> None:
        """Wake the process that waits for ``later``, in its place."""
        self.callbacks.extend(later.callbacks)
        later.callbacks.clear()

    def void(self) -> None:
        """Wake no process, if the alarm has not fired yet."""
        if self.callbacks is not None:
            self.callbacks.clear()


class Timers:
    """Calls at later times that can be cancelled. A cancelled call does not make the run longer."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._pending: dict[simpy.Event, None] = {}
        self._stopped = False

    def after(self, delay_ns: int, call: Callable[[], None]) -> simpy.Event:
        """Call ``call`` once, ``delay_ns`` from now."""
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
        """Cancel one call, if it has not been made."""
        if self._pending.pop(event, event) is None:
            event.callbacks.clear()

    def stop(self) -> None:
        """Cancel all calls, and ignore those requested later."""
        self._stopped = True
        for event in self._pending:
            event.callbacks.clear()
        self._pending.clear()
