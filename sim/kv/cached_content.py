"""Cached KV content by node, and how much of each node is cached.

A node is the run of consecutive blocks that one prefix id names (a 512-token id is 32 blocks of 16
tokens), or the blocks of one request that no other request can share. Blocks are freed and evicted
from the tail, so the cached part of a node is always its leading blocks, and one number per node
says how many.
"""

from __future__ import annotations

from sim.kv.eviction import EvictionOrder, FreeRun
from sim.kv.prefix_index import Watchers


class Node:
    """The cached leading blocks of one id; requests hold the first `pinned` of them."""

    __slots__ = (
        "at",
        "born",
        "children",
        "depths",
        "free_runs",
        "home",
        "node_id",
        "parent",
        "pinned",
        "resident",
        "uses",
    )

    def __init__(self, node_id: int, home: CacheNodes) -> None:
        self.node_id = node_id
        self.home = home
        self.parent: Node | None = None
        """The node before this one in its prefix, if the eviction order needs to know it."""
        self.at = 0
        """Number of blocks of its parent that it follows: usually all that the parent's id
        names, fewer for the private rest of a request whose last prefix id names only those."""
        self.born = 0
        self.uses = 1
        # number of leading blocks that are continued -> number of nodes that continue them
        self.children: dict[int, int] = {}
        self.resident = 0
        self.pinned = 0
        # number of pinned blocks -> number of holders with that many
        self.depths: dict[int, int] = {}
        self.free_runs: list[FreeRun] = []  # covers [pinned, resident), deepest and oldest first

    def evicted(self, run: FreeRun) -> None:
        """See `sim.kv.eviction.Owner`; the run is the node's deepest."""
        had, self.resident = self.resident, run.stop
        if run.start == run.stop:
            self.free_runs.remove(run)
        self.home.shrunk(self, had)

    def goes_before(self, run: FreeRun) -> FreeRun | None:
        """See `sim.kv.eviction.Owner`; that is the node's deepest run."""
        deepest = self.free_runs[0]
        is_continued = bool(self.children) and deepest.start < max(self.children)
        return None if is_continued else deepest


class CacheNodes:
    """All nodes with cached blocks. Deeper blocks of a node are never younger than shallower ones.

    What is cached beside them (`sim.kv.hybrid`) has its place in the same eviction order.
    """

    def __init__(self, order: EvictionOrder) -> None:
        self.watchers = Watchers()
        self.order = order
        self._is_tree = order.needs_tree
        self._nodes: dict[int, Node] = {}
        self._num_born = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def birth(self) -> int:
        """Return the position of new content in the order of arrival."""
        self._num_born += 1
        return self._num_born

    def get(self, node_id: int) -> Node | None:
        """Return the node, or None if none of its blocks is cached."""
        return self._nodes.get(node_id)

    def shrunk(self, node: Node, had: int) -> None:
        """Account for the eviction of blocks of a node, which had ``had`` before."""
        if not node.resident:
            del self._nodes[node.node_id]
            parent = node.parent
            if parent is not None:
                _drop(parent.children, node.at)
                if node.at not in parent.children:
                    self.order.exposed(parent)
        if node.node_id >= 0:
            for tell in self.watchers.on_evict:
                tell(node.node_id, node.resident, had)
            for note in self.watchers.on_change:
                note(node.node_id, node.resident)

    def hit(self, node_id: int, depth: int) -> None:
        """Let one more request use and hold the first ``depth`` blocks of a node."""
        self._nodes[node_id].uses += 1
        self.pin(node_id, depth)

    def pin(self, node_id: int, depth: int) -> None:
        """Let one more holder hold the first ``depth`` blocks of a node."""
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
            self.order.forget(run)

    def grow(self, node_id: int, had: int, depth: int, parent: tuple[int, int] | None) -> bool:
        """Let a request that holds ``had`` blocks of a node hold ``depth``, adding new content.

        Returns False and changes nothing if the node already has content there, which is not stored
        twice. ``parent``: the node before it, and how many of its blocks the request holds.
        """
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = Node(node_id, self)
            if self._is_tree:
                self._place(node, parent)
        elif node.resident > had:
            return False
        node.resident = depth
        if node_id >= 0:
            for note in self.watchers.on_change:
                note(node_id, depth)
        if had:
            _drop(node.depths, had)
        self.pin(node_id, depth)
        return True

    def _place(self, node: Node, parent: tuple[int, int] | None) -> None:
        """Record arrival and parent of a node, if the eviction order needs them."""
        node.born = self.birth()
        if parent is not None:
            parent_id, node.at = parent
            node.parent = self._nodes[parent_id]
            node.parent.children[node.at] = node.parent.children.get(node.at, 0) + 1

    def unpin(self, node_id: int, depth: int) -> int:
        """Undo a pin; return how many blocks are free now, which become the order's youngest."""
        node = self._nodes[node_id]
        _drop(node.depths, depth)
        still = max(node.depths, default=0)
        freed = node.pinned - still
        if freed:
            node.free_runs.append(self.order.add(node, still, node.pinned))
            node.pinned = still
        return freed

    def lose_all(self) -> None:
        """Forget all content and all pins."""
        gone = list(self._nodes)
        self._nodes.clear()
        self.order.clear()
        for note in self.watchers.on_change:
            for node_id in gone:
                if node_id >= 0:
                    note(node_id, 0)


def _drop(counts: dict[int, int], key: int) -> None:
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
