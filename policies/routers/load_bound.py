"""A limit on how much more than the mean one replica may get."""

from __future__ import annotations

import math

from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad


class LoadBound:
    """Requests in each replica, and whether one more would be too many.

    A replica may hold up to ``bound`` times the mean, the new request counted in, rounded up
    (consistent hashing with bounded loads, arXiv 1608.01350). None: as many as come.
    """

    def __init__(self, num_replicas: int, bound: float | None) -> None:
        if bound is not None and bound < 1:
            raise ScenarioError(f"load_bound is {bound}; at least 1, or null for no bound")
        self._bound = bound
        self.loads = [0] * num_replicas
        self._total = 0

    def has_room(self, replica: int) -> bool:
        """Whether one more request may go there."""
        if self._bound is None:
            return True
        most = math.ceil(self._bound * (self._total + 1) / len(self.loads))
        return self.loads[replica] < most

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note how many requests a replica has."""
        requests = load.waiting + load.running
        self._total += requests - self.loads[replica]
        self.loads[replica] = requests
