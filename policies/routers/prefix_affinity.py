"""Routing to where the longest part of the prompt is cached, with a bound on the load."""

from __future__ import annotations

from policies.routers.cache_index import CacheIndex
from policies.routers.least_loaded import LeastLoaded
from policies.routers.load_bound import LoadBound
from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class PrefixAffinity:
    """Choose the least loaded replica with room among those that cache the longest prefix.

    If none has room, or if less than ``min_share`` of the prompt's blocks is cached anywhere, the
    least loaded replica of all gets the request, and with it the prefix. So a prefix with more
    demand than one replica can answer spreads by itself. The router learns ``cache_delay_s`` late
    what is cached and evicted.
    """

    def __init__(
        self,
        context: RoutingContext,
        *,
        load_bound: float | None = 1.25,
        min_share: float = 0.0,
        cache_delay_s: float = 0.0,
    ) -> None:
        if not 0 <= min_share <= 1:
            raise ScenarioError(f"min_share is {min_share}; it is a share, from 0 to 1")
        self._context = context
        self._index = CacheIndex(context, cache_delay_s)
        self._bound = LoadBound(context.num_replicas, load_bound)
        self._least_loaded = LeastLoaded(context)
        self._min_share = min_share

    def choose(self, request: Request) -> int:
        prefix_ids = self._context.prefix_ids(request)
        best = self._least_loaded.choose(request)
        enough = best if self._bound.has_room(best) else None
        depth, holders = self._index.deepest(prefix_ids, enough)
        if enough in holders or depth < max(1, self._min_share * len(prefix_ids)):
            return best
        with_room = [replica for replica in holders if self._bound.has_room(replica)]
        score = self._least_loaded.score
        return min(with_room, key=lambda replica: (score(replica), replica), default=best)

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._bound.publish(replica, load)
        self._least_loaded.publish(replica, load)

    def down(self, replica: int) -> None:
        self._index.lost(replica)
        self._bound.down(replica)
        self._least_loaded.down(replica)

    def up(self, replica: int) -> None:
        self._bound.up(replica)
        self._least_loaded.up(replica)
