"""Routing to the less loaded of two random replicas."""

from bisect import insort

from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class PowerOfTwo:
    """Choose the less loaded of two random replicas, the first drawn among equals.

    This costs O(1) and does not send a herd to the least loaded replica (the power of two choices,
    Mitzenmacher 2001).
    """

    def __init__(self, context: RoutingContext) -> None:
        self._up, self._seed = list(range(context.num_replicas)), context.seed
        self._loads = [0] * context.num_replicas

    def choose(self, request: Request) -> int:
        n = len(self._up)
        if n < 2:
            return self._up[0] if n else 0
        first = int(uniform(self._seed, request.index, 0) * n)
        second = (first + 1 + int(uniform(self._seed, request.index, 1) * (n - 1))) % n
        one, other = self._up[first], self._up[second]
        return other if self._loads[other] < self._loads[one] else one

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._loads[replica] = load.waiting + load.running

    def down(self, replica: int) -> None:
        self._up.remove(replica)

    def up(self, replica: int) -> None:
        insort(self._up, replica)
