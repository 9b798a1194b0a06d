"""Routing to the replicas in turn."""

from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class RoundRobin:
    """Choose replica 0, 1, 2, ... in turn whatever their load, leaving out those that are down."""

    def __init__(self, context: RoutingContext) -> None:
        self._is_up = [True] * context.num_replicas
        self._next = 0

    def choose(self, request: Request) -> int:
        n = len(self._is_up)
        replica = self._next
        if not self._is_up[replica]:
            turns = ((replica + i) % n for i in range(1, n))
            replica = next((r for r in turns if self._is_up[r]), replica)
        self._next = (replica + 1) % n
        return replica

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        pass

    def down(self, replica: int) -> None:
        self._is_up[replica] = False

    def up(self, replica: int) -> None:
        self._is_up[replica] = True
