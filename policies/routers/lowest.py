"""The replica with the lowest score among those that take requests."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Lowest:
    """A lazy heap: every change pushes an entry, and outdated ones are dropped when they surface.

    A choice costs O(log replicas); the lowest index wins among equals.
    """

    def __init__(self, num_replicas: int) -> None:
        self._scores = [0.0] * num_replicas
        self._is_down = [False] * num_replicas
        self._heap = [(0.0, replica) for replica in range(num_replicas)]

    def best(self) -> int:
        """Return the replica with the lowest score; replica 0 if none takes requests."""
        heap, scores, is_down = self._heap, self._scores, self._is_down
        while heap:
            score, replica = heap[0]
            if score == scores[replica] and not is_down[replica]:
                return replica
            heappop(heap)
        return 0

    def score(self, replica: int) -> float:
        """Return the score of a replica."""
        return self._scores[replica]

    def set(self, replica: int, score: float) -> None:
        """Set the score of a replica."""
        if score == self._scores[replica]:
            return
        self._scores[replica] = score
        if self._is_down[replica]:
            return
        if len(self._heap) > 64 + 8 * len(self._scores):
            self._heap = [
                (score, replica)
                for replica, score in enumerate(self._scores)
                if not self._is_down[replica]
            ]
            heapify(self._heap)
        else:
            heappush(self._heap, (score, replica))

    def down(self, replica: int) -> None:
        """Mark a replica as taking no requests."""
        self._is_down[replica] = True

    def up(self, replica: int) -> None:
        """Mark a replica as taking requests again."""
        self._is_down[replica] = False
        heappush(self._heap, (self._scores[replica], replica))
