"""Cached KV content by node, and what of it is there.

A node is the run of consecutive blocks that one prefix id names (one 512-token id over 16-token
blocks is 32 blocks), or the blocks of one request that no other request can share. Blocks are
freed and evicted from the tail, so what is left of a node is always its leading blocks, and one
number a node says which are resident.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.kv.eviction import EvictionOrder, FreeRun


class Node:
    """Resident leading blocks of one id; the first `pinned` of them are held by requests."""

    __slots__ = (
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
        """The node before it in its prefix, where the order of eviction needs that."""
        self.born = 0
        self.uses = 1
        self.children = 0
        self.resident = 0
        self.pinned = 0
        self.depths: dict[int, int] = {}  # blocks pinned by a holder -> how many such holders
        self.free_runs: list[FreeRun] = []  # covers [pinned, resident), deepest and oldest first

    def evicted(self, run: FreeRun) -> None:
        """As `sim.kv.eviction.Owner` says: the run is its deepest."""
        had, self.resident = self.resident, run.stop
        if run.start == run.stop:
            self.free_runs.remove(run)
        self.home.shrunk(self, had)

    def goes_before(self, run: FreeRun) -> FreeRun | None:
        """As `sim.kv.eviction.Owner` says: its deepest run."""
        return None if self.children else self.free_runs[0]


class CacheNodes:
    """All nodes with resident blocks. Deeper blocks of a node are never younger than shallower.

    What is cached beside them (`sim.kv.hybrid`) has its place in the same order of eviction.
    """

    def __init__(self, order: EvictionOrder) -> None:
        self.on_change: Callable[[int, int], None] | None = None
        """Told of (node, resident blocks) whenever that changes; not of requests' private nodes."""
        self.on_evict: Callable[[int, int, int], None] | None = None
        """Told of (node, first block, block after the last) that were evicted, of the same."""
        self.order = order
        self._is_tree = order.needs_tree
        self._nodes: dict[int, Node] = {}
        self._num_born = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def birth(self) -> int:
        """The place of new content in the order in which it came."""
        self._num_born += 1
        return self._num_born

    def get(self, node_id: int) -> Node | None:
        """The node, if any of its blocks is resident."""
        return self._nodes.get(node_id)

    def shrunk(self, node: Node, had: int) -> None:
        """Some of its blocks were evicted; there were so many."""
        if not node.resident:
            del self._nodes[node.node_id]
            parent = node.parent
            if parent is not None:
                parent.children -= 1
                if not parent.children:
                    self.order.exposed(parent)
        if node.node_id >= 0:
            if self.on_evict is not None:
                self.on_evict(node.node_id, node.resident, had)
            if self.on_change is not None:
                self.on_change(node.node_id, node.resident)

    def hit(self, node_id: int, depth: int) -> None:
        """One more request uses the first ``depth`` blocks of a node, and holds them."""
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

    def grow(self, node_id: int, had: int, depth: int, parent_id: int | None) -> bool:
        """Let a request that holds ``had`` blocks of a node hold ``depth``, adding new content.

        False, and nothing changed, if the node already has content there: it is not kept twice.
        ``parent_id``: the node before it, which the request holds too.
        """
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = Node(node_id, self)
            if self._is_tree:
                self._place(node, parent_id)
        elif node.resident > had:
            return False
        node.resident = depth
        if self.on_change is not None and node_id >= 0:
            self.on_change(node_id, depth)
        if had:
            _drop(node.depths, had)
        self.pin(node_id, depth)
        return True

    def _place(self, node: Node, parent_id: int | None) -> None:
        """Note when it came and what it continues, where the order of eviction needs that."""
        node.born = self.birth()
        if parent_id is not None:
            node.parent = self._nodes[parent_id]
            node.parent.children += 1

    def unpin(self, node_id: int, depth: int) -> int:
        """Undo a pin; returns how many blocks nobody holds any more: the order's youngest now."""
        node = self._nodes[node_id]
        _drop(node.depths, depth)
        still = max(node.depths, default=0)
        freed = node.pinned - still
        if freed:
            node.free_runs.append(self.order.add(node, still, node.pinned))
            node.pinned = still
        return freed

    def lose_all(self) -> None:
        """No block has content any more, and none is pinned."""
        gone = list(self._nodes)
        self._nodes.clear()
        self.order.clear()
        if self.on_change is not None:
            for node_id in gone:
                if node_id >= 0:
                    self.on_change(node_id, 0)


def _drop(counts: dict[int, int], key: int) -> None:
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
