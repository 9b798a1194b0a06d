"""Requests by a hash of their session or first prefix, with a bound on the load."""

from __future__ import annotations

from bisect import bisect

from policies.routers.load_bound import LoadBound
from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request

_POINTS = 64  # of each replica on the ring: evens out the arcs


class ConsistentHash:
    """The next replica on a ring that has room (arXiv 1608.01350).

    A request's place is drawn from its session, else from its first prefix block, else from
    itself. Without state about caches, and few requests move when a replica comes or goes.
    """

    def __init__(self, context: RoutingContext, *, load_bound: float | None = 1.25) -> None:
        self._context = context
        self._bound = LoadBound(context.num_replicas, load_bound)
        ring = sorted(
            (uniform(context.seed, replica, point), replica)
            for replica in range(context.num_replicas)
            for point in range(_POINTS)
        )
        self._points = [place for place, _ in ring]
        self._owners = [replica for _, replica in ring]

    def choose(self, request: Request) -> int:
        """The first replica with room from the request's place on."""
        start = bisect(self._points, self._place(request))
        for step in range(len(self._owners)):
            replica = self._owners[(start + step) % len(self._owners)]
            if self._bound.has_room(replica):
                return replica
        return self._owners[start % len(self._owners)]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note how many requests a replica has."""
        self._bound.publish(replica, load)

    def _place(self, request: Request) -> float:
        session = self._context.session(request)
        if session is not None:
            return uniform(self._context.seed, session, _POINTS)
        first = self._context.prefix_ids(request)[:1]
        key = first[0] if first else request.index
        return uniform(self._context.seed, key, _POINTS + 1)
