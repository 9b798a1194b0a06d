"""Which replicas cache which prefixes, as a router knows it: at once, or some time later."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.protocols import RoutingContext


class CacheIndex:
    """Kept from the caches' own events, as routers keep it that subscribe to KV events.

    A prefix counts as cached where any of its last block's tokens are. O(1) an event.
    """

    def __init__(self, context: RoutingContext, delay_s: float = 0.0) -> None:
        """``delay_s``: how long an event is on its way."""
        if delay_s < 0:
            raise ScenarioError(f"cache_delay_s is {delay_s}; it is at least 0")
        self._context = context
        self._delay_ns = to_ns(delay_s)
        self._under_way: deque[tuple[int, int, int, int]] = deque()
        self._holders: dict[int, dict[int, None]] = {}
        context.watch_caches(self._note)

    def deepest(self, prefix_ids: Sequence[int]) -> tuple[int, dict[int, None]]:
        """(how many leading ids, replicas that cache them all), for the longest cached prefix.

        Looks from the end: the cost is the ids that are not cached, which must be computed anyway.
        """
        self._take_in()
        for position in range(len(prefix_ids) - 1, -1, -1):
            holders = self._holders.get(prefix_ids[position])
            if holders:
                return position + 1, holders
        return 0, {}

    def _note(self, replica: int, prefix_id: int, resident_blocks: int) -> None:
        if self._delay_ns:
            due_ns = self._context.now_ns + self._delay_ns
            self._under_way.append((due_ns, replica, prefix_id, resident_blocks))
        else:
            self._apply(replica, prefix_id, resident_blocks)

    def _take_in(self) -> None:
        now_ns = self._context.now_ns
        while self._under_way and self._under_way[0][0] <= now_ns:
            self._apply(*self._under_way.popleft()[1:])

    def _apply(self, replica: int, prefix_id: int, resident_blocks: int) -> None:
        if resident_blocks:
            self._holders.setdefault(prefix_id, {})[replica] = None
            return
        holders = self._holders.get(prefix_id)
        if holders is not None:
            holders.pop(replica, None)
            if not holders:
                del self._holders[prefix_id]
