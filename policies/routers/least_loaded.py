"""Requests to the replica with the least load, as vLLM's data-parallel balancer scores it."""

from heapq import heapify, heappop, heappush

from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request

_WAITING_WEIGHT = 4  # vLLM's DPLBAsyncMPClient: score = 4 * waiting + running


class LeastLoaded:
    """The lowest score wins, the lowest index among equals. O(log replicas) a choice.

    A lazy heap: every change pushes an entry, outdated ones are dropped when they come up.
    """

    def __init__(self, context: RoutingContext) -> None:
        self._scores = [0] * context.num_replicas
        self._heap = [(0, replica) for replica in range(context.num_replicas)]

    def choose(self, request: Request) -> int:
        """The replica with the lowest published score."""
        heap = self._heap
        while heap[0][0] != self._scores[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note a replica's new load."""
        score = _WAITING_WEIGHT * load.waiting + load.running
        if score == self._scores[replica]:
            return
        self._scores[replica] = score
        if len(self._heap) > 64 + 8 * len(self._scores):
            self._heap = [(score, replica) for replica, score in enumerate(self._scores)]
            heapify(self._heap)
        else:
            heappush(self._heap, (score, replica))
