"""Routing to the replica with the least load, as vLLM's data-parallel balancer scores it."""

from policies.routers.lowest import Lowest
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request

_WAITING_WEIGHT = 4  # vLLM's DPLBAsyncMPClient: score = 4 * waiting + running


class LeastLoaded:
    """Choose the replica with the lowest score, the lowest index among equals."""

    def __init__(self, context: RoutingContext) -> None:
        self._lowest = Lowest(context.num_replicas)
        self.down, self.up = self._lowest.down, self._lowest.up

    def choose(self, request: Request) -> int:
        return self._lowest.best()

    def score(self, replica: int) -> float:
        """Return the published score of a replica."""
        return self._lowest.score(replica)

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._lowest.set(replica, _WAITING_WEIGHT * load.waiting + load.running)
