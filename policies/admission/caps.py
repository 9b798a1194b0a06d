"""Admission by counting: requests in the system, or those that wait."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class ConcurrencyCap:
    """At most ``max_requests`` at once, a replica that is up; the others are turned away.

    With Poisson arrivals and one exponential server this is M/M/1/K.
    """

    def __init__(self, view: ServiceView, *, max_requests: int) -> None:
        if max_requests < 1:
            raise ScenarioError(f"max_requests is {max_requests}; it is at least 1")
        self._view = view
        self._most = max_requests
        self._inside = 0

    def admit(self, request: Request) -> str | None:
        """Let it in if there is a place."""
        if self._inside >= self._most * self._view.num_up:
            return "too many requests at once"
        self._inside += 1
        return None

    def left(self, request: Request) -> None:
        """A place is free."""
        self._inside -= 1


class QueueCap:
    """At most ``max_waiting`` that no engine has begun, a replica that is up."""

    def __init__(self, view: ServiceView, *, max_waiting: int) -> None:
        if max_waiting < 1:
            raise ScenarioError(f"max_waiting is {max_waiting}; it is at least 1")
        self._view = view
        self._most = max_waiting

    def admit(self, request: Request) -> str | None:
        """Let it in if the queue is not full."""
        view = self._view
        return "the queue is full" if view.waiting >= self._most * view.num_up else None

    def left(self, request: Request) -> None:
        """The queue knows by itself."""
