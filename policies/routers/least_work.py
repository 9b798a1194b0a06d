"""Requests to the replica with the least work ahead of them, in predicted tokens."""

from heapq import heapify, heappop, heappush

from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class LeastWork:
    """Queued prompt tokens, and a price in such tokens for each request that decodes.

    A long prompt is one request like any other to a router that counts requests; here it weighs
    what it costs. O(log replicas) a choice: a lazy heap, as in `least_loaded`.
    """

    def __init__(self, context: RoutingContext, *, tokens_per_running: float = 256.0) -> None:
        """``tokens_per_running``: what a running request slows the next prefill by, in tokens."""
        if tokens_per_running < 0:
            raise ScenarioError(f"tokens_per_running is {tokens_per_running}; it is at least 0")
        self._price = tokens_per_running
        self._work = [0.0] * context.num_replicas
        self._heap = [(0.0, replica) for replica in range(context.num_replicas)]

    def choose(self, request: Request) -> int:
        """The replica with the least work, the lowest index among equals."""
        heap = self._heap
        while heap[0][0] != self._work[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note what a replica has ahead of it."""
        work = load.queued_tokens + self._price * (load.waiting + load.running)
        if work == self._work[replica]:
            return
        self._work[replica] = work
        if len(self._heap) > 64 + 8 * len(self._work):
            self._heap = [(work, replica) for replica, work in enumerate(self._work)]
            heapify(self._heap)
        else:
            heappush(self._heap, (work, replica))
