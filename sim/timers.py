"""Calls at later times that can be called off, one by one or all at once."""

from __future__ import annotations

from collections.abc import Callable

import simpy


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
