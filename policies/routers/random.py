"""Requests to replicas by lot."""

from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class Random:
    """Any replica, each as likely; the draw belongs to the request."""

    def __init__(self, context: RoutingContext) -> None:
        self._num_replicas, self._seed = context.num_replicas, context.seed

    def choose(self, request: Request) -> int:
        """The replica the request drew."""
        return int(uniform(self._seed, request.index, 0) * self._num_replicas)

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Load does not matter here."""
