"""A limit on how far one replica's load may exceed the mean."""

from __future__ import annotations

import math

from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad


class LoadBound:
    """Requests in each replica, and whether one more would exceed the bound.

    A replica may hold up to ``bound`` times the mean, counting the new request and rounded up
    (consistent hashing with bounded loads, arXiv 1608.01350). None: no limit.
    """

    def __init__(self, num_replicas: int, bound: float | None) -> None:
        if bound is not None and bound < 1:
            raise ScenarioError(f"load_bound is {bound}; at least 1, or null for no bound")
        self._bound = bound
        self.loads = [0] * num_replicas
        self._is_up = [True] * num_replicas
        self._num_up = num_replicas
        self._total = 0  # requests in replicas that are up

    def has_room(self, replica: int) -> bool:
        """Return whether one more request may go to this replica."""
        if not self._is_up[replica]:
            return False
        if self._bound is None:
            return True
        most = math.ceil(self._bound * (self._total + 1) / self._num_up)
        return self.loads[replica] < most

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Take note of how many requests a replica has."""
        requests = load.waiting + load.running
        if self._is_up[replica]:
            self._total += requests - self.loads[replica]
        self.loads[replica] = requests

    def down(self, replica: int) -> None:
        """Take a replica that is down out of the mean; it has no room."""
        self._is_up[replica] = False
        self._num_up -= 1
        self._total -= self.loads[replica]

    def up(self, replica: int) -> None:
        """Put a replica that is up again back into the mean."""
        self._is_up[replica] = True
        self._num_up += 1
        self._total += self.loads[replica]
