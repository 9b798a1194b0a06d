"""Cached KV content by node, and the order in which it is evicted.

A node is the run of consecutive blocks that one prefix id names (one 512-token id over 16-token
blocks is 32 blocks), or the blocks of one request that no other request can share. Blocks are
freed and evicted from the tail, so what is left of a node is always its leading blocks, and one
number a node says which are resident.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Owner(Protocol):
    """Whose content a run is."""

    def evicted(self, run: FreeRun, /) -> None:
        """``run.stop`` has come down; nothing is left of the run where it equals its start."""


class FreeRun:
    """Blocks ``[start, stop)`` of an owner, freed at one instant: one entry of the LRU."""

    __slots__ = ("key", "owner", "pages", "start", "stop")

    def __init__(self, key: int, owner: Owner, start: int, stop: int, pages: int) -> None:
        self.key = key
        self.owner = owner
        self.start = start
        self.stop = stop
        self.pages = pages
        """Of a block."""


class Node:
    """Resident leading blocks of one id; the first `pinned` of them are held by requests."""

    __slots__ = ("depths", "free_runs", "home", "node_id", "pinned", "resident")

    def __init__(self, node_id: int, home: CacheNodes) -> None:
        self.node_id = node_id
        self.home = home
        self.resident = 0
        self.pinned = 0
        self.depths: dict[int, int] = {}  # blocks pinned by a holder -> how many such holders
        self.free_runs: list[FreeRun] = []  # covers [pinned, resident), deepest and oldest first

    def evicted(self, run: FreeRun) -> None:
        """As `Owner` says: the run is its deepest."""
        self.resident = run.stop
        if run.start == run.stop:
            self.free_runs.remove(run)
        self.home.shrunk(self)


class CacheNodes:
    """All nodes with resident blocks. Deeper blocks of a node are never younger than shallower.

    What is cached beside them (`sim.cache_sides`) has its place in the same order of eviction.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[int, int], None] | None = None
        """Told of (node, resident blocks) whenever that changes; not of requests' private nodes."""
        self._nodes: dict[int, Node] = {}
        self._lru: OrderedDict[int, FreeRun] = OrderedDict()
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def free_pages(self) -> int:
        """Pages of content that no request holds."""
        return sum((run.stop - run.start) * run.pages for run in self._lru.values())

    def get(self, node_id: int) -> Node | None:
        """The node, if any of its blocks is resident."""
        return self._nodes.get(node_id)

    def shrunk(self, node: Node) -> None:
        """Some of its blocks were evicted."""
        if not node.resident:
            del self._nodes[node.node_id]
        if self.on_change is not None and node.node_id >= 0:
            self.on_change(node.node_id, node.resident)

    def pin(self, node_id: int, depth: int) -> None:
        """Let one more request hold the first ``depth`` blocks of a node."""
        node = self._nodes[node_id]
        node.depths[depth] = node.depths.get(depth, 0) + 1
        if depth <= node.pinned:
            return
        node.pinned = depth
        while node.free_runs and node.free_runs[-1].start < depth:
            run = node.free_runs[-1]
            if run.stop > depth:
                run.start = depth
                break
            node.free_runs.pop()
            del self._lru[run.key]

    def grow(self, node_id: int, had: int, depth: int) -> bool:
        """Let a request that holds ``had`` blocks of a node hold ``depth``, adding new content.

        False, and nothing changed, if the node already has content there: it is not kept twice.
        """
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = Node(node_id, self)
        elif node.resident > had:
            return False
        node.resident = depth
        if self.on_change is not None and node_id >= 0:
            self.on_change(node_id, depth)
        if had:
            _drop(node.depths, had)
        self.pin(node_id, depth)
        return True

    def unpin(self, node_id: int, depth: int) -> int:
        """Undo a pin; returns how many blocks nobody holds any more: the LRU's youngest now."""
        node = self._nodes[node_id]
        _drop(node.depths, depth)
        still = max(node.depths, default=0)
        freed = node.pinned - still
        if freed:
            node.free_runs.append(self.add_free(node, still, node.pinned))
            node.pinned = still
        return freed

    def lose_all(self) -> None:
        """No block has content any more, and none is pinned."""
        gone = list(self._nodes)
        self._nodes.clear()
        self._lru.clear()
        if self.on_change is not None:
            for node_id in gone:
                if node_id >= 0:
                    self.on_change(node_id, 0)

    def add_free(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """Content that no request holds: the LRU's youngest now."""
        run = FreeRun(self._next_key, owner, start, stop, pages)
        self._next_key += 1
        self._lru[run.key] = run
        return run

    def refresh(self, run: FreeRun) -> None:
        """Make a run the LRU's youngest."""
        self._lru.move_to_end(run.key)

    def forget(self, run: FreeRun) -> None:
        """Drop a run; its owner knows."""
        del self._lru[run.key]

    def evict(self, pages: int) -> int:
        """Drop at least so many free pages; returns how many.

        The least recently used first, each run from its tail, in whole blocks.
        """
        evicted = 0
        while evicted < pages:
            run = next(iter(self._lru.values()))
            blocks = min(-(-(pages - evicted) // run.pages), run.stop - run.start)
            evicted += blocks * run.pages
            run.stop -= blocks
            if run.start == run.stop:
                del self._lru[run.key]
            run.owner.evicted(run)
        return evicted


def _drop(counts: dict[int, int], key: int) -> None:
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
