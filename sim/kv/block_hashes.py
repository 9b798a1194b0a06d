"""vLLM's prefix cache: full blocks, identified by the hash of all tokens up to their end.

Cached content is tracked by node (`sim.kv.cached_content`): the blocks that one prefix id names, or
those of one request that no other request can share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sim.errors import ScenarioError
from sim.kv.cached_content import CacheNodes
from sim.kv.eviction import EvictionOrder, evict, expire
from sim.kv.hybrid import CacheSides, Pool, first_blocks
from sim.kv.layout import KVLayout
from sim.kv.prefix_index import Hit
from sim.request import Request
from sim.request_table import PrefixChains


def check_blocks(chains: PrefixChains, block_size: int) -> None:
    """Raise ScenarioError if block boundaries and prefix ids cannot be aligned."""
    small, large = sorted((chains.block_tokens, block_size))
    if large % small:
        raise ScenarioError(
            f"block_size {block_size} does not divide, nor is divided by, the trace's "
            f"prefix blocks of {chains.block_tokens} tokens; choose one that does"
        )


def chain_nodes(chains: PrefixChains, block_size: int, index: int) -> list[tuple[int, int]]:
    """Return (prefix id, number of whole blocks it names) for a request."""
    ids_per_node = max(1, block_size // chains.block_tokens)
    start, stop = int(chains.offsets[index]), int(chains.offsets[index + 1])
    tokens = int(chains.tokens[index])
    node_tokens = max(chains.block_tokens, block_size)
    ids = chains.ids[start + ids_per_node - 1 : stop : ids_per_node].tolist()
    node_blocks = node_tokens // block_size
    nodes = [(node_id, node_blocks) for node_id in ids]
    if nodes:
        last_blocks = (tokens - (len(nodes) - 1) * node_tokens) // block_size
        if last_blocks < node_blocks:
            nodes[-1] = (nodes[-1][0], last_blocks)
            if last_blocks <= 0:
                nodes.pop()
    return nodes


_UNBOUNDED = 1 << 60


class BlockHashes:
    """The `sim.kv.prefix_index.PrefixIndex` of block hashes."""

    def __init__(
        self,
        pool: Pool,
        order: EvictionOrder,
        chains: PrefixChains | None,
        layout: KVLayout,
    ) -> None:
        """Raises ScenarioError if ids and blocks cannot be aligned."""
        self._pool = pool
        self._layout = layout
        self._nodes = CacheNodes(order)
        self._sides = CacheSides(pool, self._nodes, layout)
        self.watchers = self._nodes.watchers
        self._chain: Callable[[int], list[tuple[int, int]]] = lambda index: []
        """Returns the nodes of a request that others can share, if the workload names any."""
        if chains is not None:
            check_blocks(chains, pool.block_size)
            self._chain = partial(chain_nodes, chains, pool.block_size)

    def __bool__(self) -> bool:
        return bool(self._nodes)

    @property
    def free_pages(self) -> int:
        """Pages of cached content that no request holds."""
        return self._nodes.order.pages()

    def path(self, request: Request) -> list[tuple[int, int]]:
        """Return (node id, blocks of that node in this request): its chain, then its private
        rest."""
        if request.nodes is None:
            request.nodes = self._chain(request.index)
            request.nodes.append((-1 - request.index - (request.sample << 40), _UNBOUNDED))
        return request.nodes

    def lookup(self, request: Request, limit: int) -> Hit:
        """Find the cached leading blocks of a request, at most ``limit``."""
        blocks = evictable = 0
        hits: list[tuple[int, int]] = []
        for node_id, size in self.path(request):
            node = self._nodes.get(node_id)
            if node is None or blocks >= limit:
                break
            depth = min(node.resident, size, limit - blocks)
            hits.append((node_id, depth))
            blocks += depth
            evictable += max(0, depth - node.pinned)
            if depth < size:
                break
        hit = Hit(blocks, evictable, hits)
        return self._sides.usable(hit) if blocks else hit

    def pin(self, request: Request, hit: Hit) -> None:
        """Let a request hold the blocks it hit."""
        for node_id, depth in hit.nodes:
            self._nodes.hit(node_id, depth)
            request.pinned.append((node_id, depth))
        request.pinned_blocks = hit.blocks
        self._sides.touch(hit.nodes)

    def share(self, request: Request, answer: Request) -> None:
        """Let a further answer hold what the request holds."""
        for node_id, depth in request.pinned:
            self._nodes.pin(node_id, depth)
            answer.pinned.append((node_id, depth))
        answer.pinned_blocks = request.pinned_blocks

    def register(self, request: Request, full: int, *, shared_only: bool) -> None:
        """Publish the first ``full`` computed blocks of a request; see `PrefixIndex.register`."""
        pinned = request.pinned
        if full <= request.pinned_blocks:
            return
        nodes, start = self.path(request), max(len(pinned) - 1, 0)
        before = request.pinned_blocks - (pinned[-1][1] if pinned else 0)
        if pinned and pinned[-1][1] == nodes[start][1]:  # all blocks of that node are held
            start, before = start + 1, request.pinned_blocks
        for position in range(start, len(nodes)):
            node_id, size = nodes[position]
            depth = min(size, full - before)
            if depth <= 0 or (node_id < 0 and shared_only):
                break
            had = pinned[position][1] if position < len(pinned) else 0
            parent = nodes[position - 1] if position else None
            if not self._nodes.grow(node_id, had, depth, parent):
                break  # another request computed these blocks too; ours stay private
            self._sides.cache_windows(node_id, had, depth)
            pinned[position : position + 1] = [(node_id, depth)]
            before += depth
            request.pinned_blocks = before
            if depth < size:
                break

    def unpin(self, request: Request) -> int:
        """Release all that a request holds; return the number of blocks that no request holds
        now."""
        freed = 0
        for node_id, depth in reversed(request.pinned):
            freed += self._nodes.unpin(node_id, depth)
        return freed

    def released(self, request: Request, full: int) -> None:
        """Account for a released request, of which ``full`` leading blocks had been computed."""
        self._sides.touch(request.pinned)
        if self._sides.states:
            for blocks in range(request.num_target_tokens // self._pool.block_size + 1, full + 1):
                self.checkpoint(request, blocks)  # a step ended at each of these boundaries

    def evict(self, pages: int) -> int:
        """Evict at least ``pages`` free pages; return how many were evicted."""
        return evict(self._nodes.order, pages)

    def expire(self, now_ns: int) -> int:
        """Evict content past its lifetime; it is not written to lower tiers either."""
        told, self.watchers.on_evict = self.watchers.on_evict, ()
        expired = expire(self._nodes.order, now_ns)
        self.watchers.on_evict = told
        return expired

    def next_expiry_ns(self) -> int | None:
        """Return when content expires next; None: never."""
        return self._nodes.order.next_expiry_ns()

    def lose_all(self) -> None:
        """Forget all content and all holders."""
        self._nodes.lose_all()
        self._sides = CacheSides(self._pool, self._nodes, self._layout)

    def common_blocks(self, request: Request, holders: int) -> int:
        """Return the leading blocks of a running request that at least ``holders`` requests
        hold."""
        common = 0
        for node_id, depth in request.pinned:
            node = self._nodes.get(node_id)
            if node is None or sum(node.depths.values()) < holders:
                break
            shallowest = min(node.depths)
            common += shallowest
            if shallowest < depth:
                break
        return common

    def new_step(self) -> None:
        """Make the states computed by the step before usable."""
        for states in self._sides.states:
            states.new_step()

    def checkpoint(self, request: Request, blocks: int) -> None:
        """Keep the recurrent state after ``blocks`` blocks of a request."""
        if self._sides.states:
            self._sides.checkpoint(first_blocks(self.path(request), blocks))
