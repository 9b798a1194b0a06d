"""Admission by counting: a cap on requests in the system, or on those that wait."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class ConcurrencyCap:
    """Turn requests away while ``max_requests`` per available replica are in the system.

    With Poisson arrivals and one exponential server this is M/M/1/K.
    """

    def __init__(self, view: ServiceView, *, max_requests: int) -> None:
        if max_requests < 1:
            raise ScenarioError(f"max_requests is {max_requests}; it is at least 1")
        self._view = view
        self._most = max_requests
        self._inside = 0

    def admit(self, request: Request) -> str | None:
        if self._inside >= self._most * self._view.num_up:
            return "too many requests at once"
        self._inside += 1
        return None

    def left(self, request: Request) -> None:
        self._inside -= 1


class QueueCap:
    """Turn requests away while ``max_waiting`` per available replica wait to be started."""

    def __init__(self, view: ServiceView, *, max_waiting: int) -> None:
        if max_waiting < 1:
            raise ScenarioError(f"max_waiting is {max_waiting}; it is at least 1")
        self._view = view
        self._most = max_waiting

    def admit(self, request: Request) -> str | None:
        view = self._view
        return "the queue is full" if view.waiting >= self._most * view.num_up else None

    def left(self, request: Request) -> None:
        pass
