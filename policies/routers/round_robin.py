"""Requests to replicas in turn."""

from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class RoundRobin:
    """Replica 0, 1, 2, ... and again, whatever their load; those that are down miss their turn."""

    def __init__(self, context: RoutingContext) -> None:
        self._is_up = [True] * context.num_replicas
        self._next = 0

    def choose(self, request: Request) -> int:
        """The replica whose turn it is."""
        n = len(self._is_up)
        replica = self._next
        if not self._is_up[replica]:
            turns = ((replica + i) % n for i in range(1, n))
            replica = next((r for r in turns if self._is_up[r]), replica)
        self._next = (replica + 1) % n
        return replica

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Load does not matter here."""

    def down(self, replica: int) -> None:
        """Leave a replica out."""
        self._is_up[replica] = False

    def up(self, replica: int) -> None:
        """It has its turn again."""
        self._is_up[replica] = True
