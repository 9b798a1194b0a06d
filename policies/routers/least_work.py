"""Routing to the replica with the least predicted work, in tokens."""

from policies.routers.lowest import Lowest
from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class LeastWork:
    """Choose the replica with the fewest queued prompt tokens, plus a price per request.

    A router that counts requests treats a long prompt like any other; here it weighs what it costs.
    ``tokens_per_running`` is how much a request slows the next prefill, in prompt tokens. The
    lowest index wins among equals.
    """

    def __init__(self, context: RoutingContext, *, tokens_per_running: float = 256.0) -> None:
        if tokens_per_running < 0:
            raise ScenarioError(f"tokens_per_running is {tokens_per_running}; it is at least 0")
        self._price = tokens_per_running
        self._lowest = Lowest(context.num_replicas)
        self.down, self.up = self._lowest.down, self._lowest.up

    def choose(self, request: Request) -> int:
        return self._lowest.best()

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        work = load.queued_tokens + self._price * (load.waiting + load.running)
        self._lowest.set(replica, work)
