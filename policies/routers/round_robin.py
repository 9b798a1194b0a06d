"""Requests to replicas in turn."""

from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class RoundRobin:
    """Replica 0, 1, 2, ... and again, whatever their load."""

    def __init__(self, context: RoutingContext) -> None:
        self._num_replicas = context.num_replicas
        self._next = 0

    def choose(self, request: Request) -> int:
        """The replica whose turn it is."""
        replica = self._next
        self._next = (replica + 1) % self._num_replicas
        return replica

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Load does not matter here."""
