"""The replica with the lowest score, of those that take requests."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Lowest:
    """A lazy heap: every change pushes an entry, outdated ones are dropped when they come up.

    O(log replicas) a choice; the lowest index wins among equals.
    """

    def __init__(self, num_replicas: int) -> None:
        self._scores = [0.0] * num_replicas
        self._is_down = [False] * num_replicas
        self._heap = [(0.0, replica) for replica in range(num_replicas)]

    def best(self) -> int:
        """The replica with the lowest score; the first of all if none takes requests."""
        heap, scores, is_down = self._heap, self._scores, self._is_down
        while heap:
            score, replica = heap[0]
            if score == scores[replica] and not is_down[replica]:
                return replica
            heappop(heap)
        return 0

    def score(self, replica: int) -> float:
        """Of one replica."""
        return self._scores[replica]

    def set(self, replica: int, score: float) -> None:
        """A replica's score has changed, or not."""
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
        """It takes no requests any more."""
        self._is_down[replica] = True

    def up(self, replica: int) -> None:
        """It does again."""
        self._is_down[replica] = False
        heappush(self._heap, (self._scores[replica], replica))
