"""Requests to the replica with the least work ahead of them, in predicted tokens."""

from policies.routers.lowest import Lowest
from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class LeastWork:
    """Queued prompt tokens, and a price in such tokens for each request that decodes.

    A long prompt is one request like any other to a router that counts requests; here it weighs
    what it costs. The lowest index wins among equals.
    """

    def __init__(self, context: RoutingContext, *, tokens_per_running: float = 256.0) -> None:
        """``tokens_per_running``: what a running request slows the next prefill by, in tokens."""
        if tokens_per_running < 0:
            raise ScenarioError(f"tokens_per_running is {tokens_per_running}; it is at least 0")
        self._price = tokens_per_running
        self._lowest = Lowest(context.num_replicas)
        self.down, self.up = self._lowest.down, self._lowest.up

    def choose(self, request: Request) -> int:
        """The replica with the least work."""
        return self._lowest.best()

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note what a replica has ahead of it."""
        work = load.queued_tokens + self._price * (load.waiting + load.running)
        self._lowest.set(replica, work)
