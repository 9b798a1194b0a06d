"""Cached KV content by node, and the order in which it is evicted.

A node is the run of consecutive blocks that one prefix id names (one 512-token id over 16-token
blocks is 32 blocks), or the blocks of one request that no other request can share. Blocks are
freed and evicted from the tail, so what is left of a node is always its leading blocks, and one
number a node says which are resident.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Node:
    """Resident leading blocks of one id; the first `pinned` of them are held by requests."""

    __slots__ = ("depths", "free_runs", "pinned", "resident")

    def __init__(self) -> None:
        self.resident = 0
        self.pinned = 0
        self.depths: dict[int, int] = {}  # blocks pinned by a holder -> how many such holders
        self.free_runs: list[FreeRun] = []  # covers [pinned, resident), deepest and oldest first


class FreeRun:
    """Blocks ``[start, stop)`` of a node, freed at one instant: one entry of the LRU."""

    __slots__ = ("key", "node", "node_id", "start", "stop")

    def __init__(self, key: int, node_id: int, node: Node, start: int, stop: int) -> None:
        self.key = key
        self.node_id = node_id
        self.node = node
        self.start = start
        self.stop = stop


class CacheNodes:
    """All nodes with resident blocks. Deeper blocks of a node are never younger than shallower."""

    def __init__(self) -> None:
        self.on_change: Callable[[int, int], None] | None = None
        """Told of (node, resident blocks) whenever that changes; not of requests' private nodes."""
        self._nodes: dict[int, Node] = {}
        self._lru: OrderedDict[int, FreeRun] = OrderedDict()
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node_id: int) -> Node | None:
        """The node, if any of its blocks is resident."""
        return self._nodes.get(node_id)

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
            node = self._nodes[node_id] = Node()
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
            run = FreeRun(self._next_key, node_id, node, still, node.pinned)
            self._next_key += 1
            self._lru[run.key] = run
            node.free_runs.append(run)
            node.pinned = still
        return freed

    def evict(self, blocks: int) -> None:
        """Drop that many free blocks, the least recently used first, each run from its tail."""
        while blocks:
            run = next(iter(self._lru.values()))
            evicted = min(blocks, run.stop - run.start)
            blocks -= evicted
            run.stop -= evicted
            run.node.resident = run.stop
            if self.on_change is not None and run.node_id >= 0:
                self.on_change(run.node_id, run.stop)
            if run.start == run.stop:
                del self._lru[run.key]
                run.node.free_runs.remove(run)
                if run.node.resident == 0:
                    del self._nodes[run.node_id]


def _drop(counts: dict[int, int], key: int) -> None:
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
