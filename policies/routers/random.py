"""Requests to replicas by lot."""

from bisect import insort

from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class Random:
    """Any replica, each as likely; the draw belongs to the request."""

    def __init__(self, context: RoutingContext) -> None:
        self._up, self._seed = list(range(context.num_replicas)), context.seed

    def choose(self, request: Request) -> int:
        """The replica the request drew."""
        if not self._up:
            return 0
        return self._up[int(uniform(self._seed, request.index, 0) * len(self._up))]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Load does not matter here."""

    def down(self, replica: int) -> None:
        """Leave a replica out."""
        self._up.remove(replica)

    def up(self, replica: int) -> None:
        """It can be drawn again."""
        insort(self._up, replica)
