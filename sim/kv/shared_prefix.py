"""Prefixes that decoding sequences share, as seen by a kernel that reads them once.

`PrefixTree` follows every stretch of prefix that several members of a decode group hold (Hydragen,
arXiv 2402.05099; ChunkAttention, arXiv 2402.15220); `common_prefix` is the one that all running
requests hold (vLLM's cascade attention). Shared means stored once by the KV cache: a request that
computed equal content at the same time has blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.kv.pool import KVCache
from sim.request import Request
from sim.shape import SharedSums

KINDS = ("none", "cascade", "tree")
"""Values of `EngineConfig.shared_prefix_attention`."""


class _Node:
    """The holders of one cache node.

    Holders that continue beyond the node usually hold all of its blocks. If the last prefix id of a
    request names only some of them, its private rest follows those.
    """

    __slots__ = ("at", "children", "ends", "parent", "passing")

    def __init__(self, parent: _Node | None = None, at: int = 0) -> None:
        self.parent = self if parent is None else parent
        """The node before this one; the root is its own."""
        self.at = at
        """Number of blocks of its parent that it follows."""
        # number of blocks held -> number of nodes that follow them
        self.children: dict[int, int] = {}
        # number of blocks held -> number of holders that continue from there
        self.passing: dict[int, int] = {}
        self.ends: dict[int, int] = {}  # number of blocks held -> number of holders that end there

    def sums(self) -> tuple[int, int, int]:
        """Return the `SharedSums` of a subtree, in blocks. A stretch that continues in an only
        child is counted there."""
        passing, ends = self.passing, self.ends
        if not ends and len(passing) == 1:  # in most nodes all holders continue from one place
            [(depth, holders)] = passing.items()
            if holders == 1:
                return 0, 0, 0
            return holders * depth, depth, 0 if self.children.get(depth) == 1 else holders
        holders = sum(passing.values()) + sum(ends.values())
        tokens = reads = parts = start = 0
        for depth in sorted(passing | ends):
            if holders < 2:
                break
            going_on = passing.get(depth, 0)
            tokens += holders * (depth - start)
            reads += depth - start
            parts += 0 if going_on == holders and self.children.get(depth) == 1 else holders
            holders -= going_on + ends.get(depth, 0)
            start = depth
        return tokens, reads, parts


class PrefixTree:
    """The prefixes of a decode group's members. A join or a leave costs O(nodes of the member)."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node()
        self._nodes: dict[int, _Node] = {}
        self._paths: dict[Request, list[tuple[int, int]]] = {}
        self._tokens = self._reads = self._parts = 0

    def join(self, request: Request) -> None:
        """Add a member; what it pins in the KV cache is shared."""
        path = self._paths[request] = request.pinned.copy()
        self._count(path, 0, 1)

    def leave(self, request: Request) -> None:
        """Remove a member from the tree."""
        self._count(self._paths.pop(request), 0, -1)

    def follow(self, request: Request) -> None:
        """Follow a member that may pin more than before: others can hit what it has generated."""
        path, pinned = self._paths[request], request.pinned
        if len(path) == len(pinned) and path[-1:] == pinned[-1:]:
            return
        start = max(len(path) - 1, 0)
        self._count(path, start, -1)
        path[start:] = pinned[start:]
        self._count(path, start, 1)

    def sums(self, without: Iterable[Request] = ()) -> SharedSums:
        """Return the sums over all members except those in ``without``."""
        left_out = list(without)
        for request in left_out:
            self._count(self._paths[request], 0, -1)
        size = self._block_size
        found = SharedSums(self._tokens * size, self._reads * size, self._parts)
        for request in left_out:
            self._count(self._paths[request], 0, 1)
        return found

    def _count(self, path: list[tuple[int, int]], start: int, sign: int) -> None:
        """Add (``sign`` 1) or remove (-1) the nodes of a path from ``start`` on."""
        nodes = self._nodes
        parent = nodes[path[start - 1][0]] if start else self._root
        self._post(parent, -1)
        changed = [parent]
        for position in range(start, len(path)):
            node_id, depth = path[position]
            if node_id not in nodes:
                at = path[position - 1][1] if position else 0
                nodes[node_id] = _Node(parent, at)
                _add(parent.children, at, 1)
            found = nodes[node_id]
            self._post(found, -1)
            changed.append(found)
            _add(found.ends if position == len(path) - 1 else found.passing, depth, sign)
            if not found.passing and not found.ends:
                del nodes[node_id]
                _add(found.parent.children, found.at, -1)
            parent = found
        for node in changed:
            self._post(node, 1)

    def _post(self, node: _Node, sign: int) -> None:
        tokens, reads, parts = node.sums()
        self._tokens += sign * tokens
        self._reads += sign * reads
        self._parts += sign * parts


def _add(counts: dict[int, int], key: int, more: int) -> None:
    left = counts.get(key, 0) + more
    if left:
        counts[key] = left
    else:
        del counts[key]


def common_prefix(
    kv: KVCache,
    running: dict[Request, None],
    prefilling: Iterable[Request],
    decode_seqs: int,
    loading: int = 0,
) -> SharedSums:
    """Return the prefix that all running requests hold, for ``decode_seqs`` of them that decode.

    The ``loading`` requests whose KV is being loaded have blocks too, and must share the prefix.
    vLLM's rule: blocks with as many references as there are requests, up to the fewest tokens that
    any of them has computed before the step, in whole blocks.
    """
    if len(running) < 2 or not decode_seqs:
        return SharedSums()
    tokens = kv.common_blocks(next(iter(running)), len(running) + loading) * kv.block_size
    for request in prefilling:
        tokens = min(tokens, request.num_computed_tokens)
    tokens -= tokens % kv.block_size
    return SharedSums(tokens * decode_seqs, tokens, decode_seqs if tokens else 0)
