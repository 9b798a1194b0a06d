"""Two replicas by lot, the request to the less loaded of them."""

from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class PowerOfTwo:
    """The power of two choices (Mitzenmacher, 2001): O(1), and no herd on the least loaded."""

    def __init__(self, context: RoutingContext) -> None:
        self._num_replicas, self._seed = context.num_replicas, context.seed
        self._loads = [0] * context.num_replicas

    def choose(self, request: Request) -> int:
        """The less loaded of two different replicas; the first drawn among equals."""
        n = self._num_replicas
        first = int(uniform(self._seed, request.index, 0) * n)
        if n == 1:
            return first
        second = (first + 1 + int(uniform(self._seed, request.index, 1) * (n - 1))) % n
        return second if self._loads[second] < self._loads[first] else first

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note how many requests a replica has."""
        self._loads[replica] = load.waiting + load.running
