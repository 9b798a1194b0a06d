"""A router's index of which replicas cache which prefixes, current or delayed."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.protocols import RoutingContext


class CacheIndex:
    """An index kept from the caches' events, as routers keep it that subscribe to KV events.

    A prefix counts as cached if any tokens of its last block are. Events arrive ``delay_s`` late.
    An event costs O(log n) with a delay, else O(1). Evictions are asked for only when they matter,
    from the replicas that seem to hold a prefix.
    """

    def __init__(self, context: RoutingContext, delay_s: float = 0.0) -> None:
        if delay_s < 0:
            raise ScenarioError(f"cache_delay_s is {delay_s}; it is at least 0")
        self._context = context
        self._delay_ns = to_ns(delay_s)
        self._under_way: list[
            tuple[int, int, int, int, int]
        ] = []  # (due_ns, order of sending, replica, prefix id, blocks)
        self._made = 0
        self._holders: dict[int, int | dict[int, None]] = {}
        """By prefix: the replica that holds it, or a mapping if there are several. Most prefixes
        have one holder, and a mapping takes as much memory as ten of them."""
        if self._delay_ns:
            context.watch_caches(self._note, when="deferred_timed")
        else:
            context.watch_caches(self._apply, when="deferred")

    def deepest(
        self, prefix_ids: Sequence[int], enough: int | None = None
    ) -> tuple[int, dict[int, None]]:
        """Return the longest cached prefix, in ids, and the replicas that cache it.

        The search starts from the end, so that it costs as much as the ids that are not cached,
        which must be computed anyway. If ``enough`` is one of the holders, the others are not
        checked and may have evicted the prefix meanwhile.
        """
        self._take_in()
        for position in range(len(prefix_ids) - 1, -1, -1):
            prefix_id = prefix_ids[position]
            holders = self._of(prefix_id)
            if not holders:
                continue
            if enough in holders:
                self._context.catch_up(enough)
                self._take_in()
                holders = self._of(prefix_id)
                if enough in holders:
                    return position + 1, holders
            for replica in list(holders):
                self._context.catch_up(replica)
            self._take_in()
            holders = self._of(prefix_id)
            if holders:
                return position + 1, holders
        return 0, {}

    def depth(self, prefix_ids: Sequence[int], replica: int) -> int:
        """Return how many leading ids one replica caches; the search starts from the end."""
        self._context.catch_up(replica)
        self._take_in()
        for position in range(len(prefix_ids) - 1, -1, -1):
            if replica in self._of(prefix_ids[position]):
                return position + 1
        return 0

    def lost(self, replica: int) -> None:
        """Forget everything that a replica caches, and its events that have not arrived yet."""
        self._under_way = [event for event in self._under_way if event[2] != replica]
        heapify(self._under_way)
        for prefix_id in list(self._holders):
            self._apply(replica, prefix_id, 0)

    def _note(self, replica: int, prefix_id: int, resident_blocks: int) -> None:
        due_ns = self._context.now_ns + self._delay_ns
        self._made += 1
        heappush(self._under_way, (due_ns, self._made, replica, prefix_id, resident_blocks))

    def _take_in(self) -> None:
        if not self._under_way:
            return
        now_ns = self._context.now_ns
        while self._under_way and self._under_way[0][0] <= now_ns:
            self._apply(*heappop(self._under_way)[2:])

    def _of(self, prefix_id: int) -> dict[int, None]:
        """Return the replicas that hold a prefix."""
        held = self._holders.get(prefix_id)
        if held is None:
            return {}
        return {held: None} if isinstance(held, int) else held

    def _apply(self, replica: int, prefix_id: int, resident_blocks: int) -> None:
        held = self._holders.get(prefix_id)
        if resident_blocks:
            if held is None:
                self._holders[prefix_id] = replica
            elif not isinstance(held, int):
                held[replica] = None
            elif held != replica:
                self._holders[prefix_id] = {held: None, replica: None}
            return
        if held == replica:
            del self._holders[prefix_id]
        elif isinstance(held, dict):
            held.pop(replica, None)
            if not held:
                del self._holders[prefix_id]
