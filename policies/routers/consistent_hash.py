"""Routing by a hash of the session or first prefix, with a bound on the load."""

from __future__ import annotations

from bisect import bisect

from policies.routers.load_bound import LoadBound
from sim.draws import uniform
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request

_POINTS = 64  # per replica on the ring; many points make the arcs even


class ConsistentHash:
    """Choose the next replica with room on a ring of hashes (arXiv 1608.01350).

    A request's position on the ring is drawn from its session, else from its first prefix block,
    else from itself. No state about caches is kept, and few requests move when a replica comes or
    goes.
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
        self.down, self.up = self._bound.down, self._bound.up

    def choose(self, request: Request) -> int:
        start = bisect(self._points, self._place(request))
        for step in range(len(self._owners)):
            replica = self._owners[(start + step) % len(self._owners)]
            if self._bound.has_room(replica):
                return replica
        return self._owners[start % len(self._owners)]

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._bound.publish(replica, load)

    def _place(self, request: Request) -> float:
        session = self._context.session(request)
        if session is not None:
            return uniform(self._context.seed, session, _POINTS)
        first = self._context.prefix_ids(request)[:1]
        key = first[0] if first else request.index
        return uniform(self._context.seed, key, _POINTS + 1)
