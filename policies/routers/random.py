"""Routing to random replicas."""

from bisect import insort

from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class Random:
    """Choose any replica with equal probability; the draw belongs to the request."""

    def __init__(self, context: RoutingContext) -> None:
        self._up, self._seed = list(range(context.num_replicas)), context.seed

    def choose(self, request: Request) -> int:
        if not self._up:
            return 0
        return self._up[int(uniform(self._seed, request.index, 0) * len(self._up))]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        pass

    def down(self, replica: int) -> None:
        self._up.remove(replica)

    def up(self, replica: int) -> None:
        insort(self._up, replica)
