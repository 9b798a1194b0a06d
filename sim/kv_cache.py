"""The paged KV pool of one engine, with vLLM's block-hash prefix cache.

A block is *held* by running requests or *free*. A free block is either empty (never used, or its
content has no hash) or still caches hashed content; empty ones are reused first, cached ones in
LRU order, a request's tail before its head. One block of the pool is vLLM's null block.

Cached content is kept a node at a time (`sim.cache_nodes`): the blocks that one prefix id names,
or those of one request that no other request can share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sim.cache_nodes import CacheNodes
from sim.cache_sides import CacheSides, first_blocks
from sim.chain_nodes import chain_nodes, check_blocks
from sim.errors import ScenarioError
from sim.kv_layout import PLAIN, KVLayout
from sim.protocols import Watch
from sim.request import Request, Status
from sim.request_table import PrefixChains
from sim.together import SharedBlocks

_UNBOUNDED = 1 << 60


class Hit(NamedTuple):
    """What a lookup found: leading blocks of the request that are resident."""

    blocks: int
    evictable: int
    """How many of them no running request holds: using them takes from the free blocks."""
    nodes: list[tuple[int, int]]
    """(node, leading blocks hit in it), in order."""
    common: int = 0
    """Leading blocks that are cached, though some layers' states do not allow beginning there."""
    is_fresh: bool = False
    """Its state is only computed in the step being planned: it can be used from the next on."""


class KVCache:
    """Conserves blocks exactly: ``free_blocks`` plus blocks held is always ``usable_blocks``."""

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        chains: PrefixChains | None = None,
        layout: KVLayout = PLAIN,
        num_host_blocks: int = 0,
    ) -> None:
        """``chains`` are the prefix ids of the request table, if it has any.

        With a ``layout`` that is not plain, a block is a page of it. Prefix hits are of the pages
        of layers whose state grows, as far as windows and recurrent states are cached too
        (`sim.cache_sides`); a request that hits takes pages of its own for those.
        ``num_host_blocks`` are for sequences that are swapped out.
        Raises ScenarioError where ids and blocks cannot be lined up.
        """
        if num_gpu_blocks < 2:
            raise ScenarioError(f"num_gpu_blocks is {num_gpu_blocks}; an engine needs at least 2")
        self.block_size = block_size
        self._layout = None if layout == PLAIN else layout
        self.usable_blocks = num_gpu_blocks - 1
        self.free_blocks = self.usable_blocks
        self.free_host_blocks = self._num_host_blocks = num_host_blocks
        self._grows = layout.grows
        # Where no layer's state grows, or some of it is dropped, no prefix is ever all there.
        self._prefix_caching = prefix_caching and layout.grows and not layout.prompts
        self._chains = chains if self._prefix_caching else None
        self._empty_blocks = self.usable_blocks
        self._nodes = CacheNodes()
        self.watched: Watch | None = None
        """How soon someone is told of what is cached and evicted; None: nobody is."""
        self._sides = self._new_sides()
        if self._chains is not None:
            check_blocks(self._chains, block_size)

    def _new_sides(self) -> CacheSides | None:
        layout = self._layout
        if layout is None or not self._prefix_caching:
            return None
        keeps = layout.windows or layout.checkpoint_pages
        return CacheSides(self, self._nodes, layout) if keeps else None

    def watch(self, on_change: Callable[[int, int], None], *, when: Watch) -> None:
        """Tell of (prefix id, its resident leading blocks) whenever that changes."""
        self._nodes.on_change = on_change
        self.watched = when

    @property
    def shares_output(self) -> bool:
        """Whether blocks filled while decoding can be hit by others."""
        return self._chains is not None and self._chains.covers_output

    @property
    def empty_blocks(self) -> int:
        """Free blocks without content."""
        return self._empty_blocks

    @property
    def cached_free_blocks(self) -> int:
        """Free blocks with cached content."""
        return self._nodes.free_pages

    def lookup(self, request: Request) -> Hit:
        """Find the request's resident leading blocks; changes nothing.

        At least one token is left to compute (vLLM's limit), so a full hit recomputes a block.
        """
        limit = (request.num_target_tokens - 1) // self.block_size if self._prefix_caching else 0
        blocks = evictable = 0
        hits: list[tuple[int, int]] = []
        if not self._nodes:
            return Hit(0, 0, hits)
        for node_id, size in self._node_sizes(request):
            node = self._nodes.get(node_id)
            if node is None or blocks >= limit:
                break
            depth = min(node.resident, size, limit - blocks)
            hits.append((node_id, depth))
            blocks += depth
            evictable += max(0, depth - node.pinned)
            if depth < size:
                break
        if self._sides is not None and blocks:
            nodes, evictable, is_fresh = self._sides.usable(hits)
            return Hit(sum(depth for _, depth in nodes), evictable, nodes, blocks, is_fresh)
        return Hit(blocks, evictable, hits)

    def reservable(self, request: Request, reserve_tokens: int) -> int:
        """So many tokens, or what the request needs where the pool could never hold so many; 0
        where it could not hold that (the answer is decoded elsewhere)."""
        for tokens in (reserve_tokens, request.prompt_tokens + request.output_tokens):
            if (
                self.blocks_for(tokens) + self.unforked_blocks(request, tokens)
                <= self.usable_blocks
            ):
                return tokens
        return 0

    def fits(self, request: Request, hit: Hit, reserve_tokens: int = 0) -> bool:
        """vLLM's admission gate: the whole known sequence, less its hits, fits into free blocks.

        With a reservation, that many tokens have to fit; of several answers, each one's own blocks.
        """
        if hit.is_fresh:
            return False
        need = self.blocks_for(max(request.num_target_tokens, reserve_tokens)) - hit.blocks
        if request.samples is not None:
            need += self.unforked_blocks(request, reserve_tokens)
        return need <= self.free_blocks - hit.evictable

    def unforked_blocks(self, request: Request, reserve_tokens: int = 0) -> int:
        """Blocks of its own that each further answer begins with, summed: a copy of the prompt's
        last block if that is partial, pages of windows, and what is reserved."""
        own = self._kept(request, request.prompt_tokens, reserve_tokens)
        return request.num_unforked * (own - self._full_blocks(request.prompt_tokens))

    def hold(self, request: Request, reserve_tokens: int) -> None:
        """Hold, from its admission on, blocks of that many tokens and of its further answers."""
        if reserve_tokens:
            size = self.block_size
            request.reserved_tokens = -(-reserve_tokens // size) * size
            self.extend(request, request.reserved_tokens)
        if request.samples is not None:
            self.take(self.unforked_blocks(request, reserve_tokens))

    def fork(self, request: Request, answer: Request) -> None:
        """Let one more answer begin: it reads the prompt's full blocks and copies the rest.

        The blocks of its own were held by the request.
        """
        if request.shared is None:
            rest = self._full_blocks(request.prompt_tokens) - request.pinned_blocks
            request.shared = SharedBlocks(max(rest, 0), 1)
        request.shared.holders += 1
        answer.shared = request.shared
        for node_id, depth in request.pinned:
            self._nodes.pin(node_id, depth)
            answer.pinned.append((node_id, depth))
        answer.pinned_blocks = request.pinned_blocks
        answer.reserved_tokens = request.reserved_tokens
        answer.num_blocks = self.blocks_held(answer, request.prompt_tokens)

    def swap_out(self, request: Request, computed_tokens: int) -> bool:
        """Give a sequence blocks on the host; False, and nothing changed, if too few are free."""
        if request.status is Status.DECODING:
            blocks = self._kept(request, computed_tokens, 0)  # not what it reserved
        else:
            blocks = self.blocks_for(computed_tokens)
        if not 0 < blocks <= self.free_host_blocks:
            return False
        self.free_host_blocks -= blocks
        request.swapped_blocks = blocks
        return True

    def swap_in(self, request: Request) -> int:
        """Bring it back to the device, where its blocks fit; returns how many were moved."""
        blocks = request.swapped_blocks
        self.free_host_blocks += blocks
        self.take(blocks)
        request.num_blocks, request.swapped_blocks = blocks, 0
        return blocks

    def pin(self, request: Request, hit: Hit) -> None:
        """Let an admitted request hold the blocks it hit."""
        for node_id, depth in hit.nodes:
            self._nodes.pin(node_id, depth)
            request.pinned.append((node_id, depth))
        self.free_blocks -= hit.evictable
        if self._sides is not None:
            self._sides.touch(hit.nodes)
        request.num_blocks = request.pinned_blocks = hit.blocks
        request.cached_tokens = request.num_computed_tokens = hit.blocks * self.block_size

    def extend(self, request: Request, num_computed_tokens: int) -> bool:
        """Hold the blocks of that many tokens; False, and nothing changed, if too few are free."""
        need = self.blocks_for(num_computed_tokens) - request.num_blocks
        if need <= 0:
            return True  # some of its blocks were reserved
        if need > self.free_blocks:
            return False
        self.take(need)
        request.num_blocks += need
        return True

    def take(self, blocks: int) -> None:
        """Hold ``blocks`` free blocks, evicting cached ones where no empty one is left."""
        self.free_blocks -= blocks
        if blocks > self._empty_blocks:
            self.make_empty(blocks)
        self._empty_blocks -= blocks

    def register(self, request: Request, num_hashed_tokens: int) -> None:
        """Make the request's full blocks of its first ``num_hashed_tokens`` hittable."""
        if self._chains is None or request.shared is not None:
            return
        full = num_hashed_tokens // self.block_size
        self._register(request, full, shared_only=True)

    def new_step(self) -> None:
        """A step is planned: states that the one before computes can be used."""
        if self._sides is not None:
            self._sides.new_step()

    def checkpoint(self, request: Request, tokens: int) -> None:
        """Keep the recurrent state after so many of its tokens, if they end a block."""
        if self._sides is not None and not tokens % self.block_size:
            blocks = tokens // self.block_size
            self._sides.checkpoint(first_blocks(self._node_sizes(request), blocks))

    def release(self, request: Request, num_hashed_tokens: int, *, will_return: bool) -> None:
        """Free all blocks of a request; hashed content stays cached until it is evicted.

        ``will_return`` (preempted): its private content can be hit again, by itself.
        """
        held = request.num_blocks
        # Content that nobody can hit again need not be kept, except for its place in the LRU
        # behind content that can.
        can_be_hit = will_return or self._chains is not None
        is_kept = self._prefix_caching and request.shared is None
        is_kept = is_kept and bool(can_be_hit or self._nodes)
        if is_kept:
            full = min(num_hashed_tokens // self.block_size, held)
            self._register(request, full, shared_only=False)
        # Blocks without a hash, and copies of what another request registered first, are empty.
        if request.samples is not None:
            held += self.unforked_blocks(request, request.reserved_tokens)
        freed = held - request.pinned_blocks
        if request.shared is not None:
            freed -= self._let_go(request.shared)
            request.shared = None
        self._empty_blocks += freed
        for node_id, depth in reversed(request.pinned):
            freed += self._nodes.unpin(node_id, depth)
        self.free_blocks += freed
        if self._sides is not None and is_kept:
            self._sides.touch(request.pinned)
            decoded = range(request.num_target_tokens // self.block_size + 1, full + 1)
            for blocks in decoded:  # a step ended at each of these boundaries
                self.checkpoint(request, blocks * self.block_size)
        request.pinned.clear()
        request.num_blocks = request.pinned_blocks = request.reserved_tokens = 0
        request.lookahead_tokens = 0

    def lose_all(self) -> None:
        """Everything held and cached is gone at once; those who watch are told."""
        self._nodes.lose_all()
        self._sides = self._new_sides()
        self.free_blocks = self._empty_blocks = self.usable_blocks
        self.free_host_blocks = self._num_host_blocks

    def blocks_held(self, request: Request, computed_tokens: int) -> int:
        """Blocks of a sequence with its prompt and so many tokens computed: those that are kept, or
        all and what it reserved; and where it has speculated, those it drafted into."""
        reserved_tokens = request.reserved_tokens
        computed_tokens += request.lookahead_tokens
        if self._layout is not None:
            return self._kept(request, computed_tokens, reserved_tokens)
        tokens = computed_tokens if computed_tokens > reserved_tokens else reserved_tokens
        return -(-tokens // self.block_size)

    def common_blocks(self, request: Request, holders: int) -> int:
        """Leading blocks of a running request that as many as ``holders`` requests hold."""
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

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold a sequence of ``tokens`` tokens, none of them dropped."""
        if self._layout is not None:
            return self._layout.pages(tokens, self.block_size)
        return -(-tokens // self.block_size)

    def drop(self, request: Request, computed_tokens: int) -> None:
        """Its prompt is computed: give back what is beyond the budgets of prompts.

        Kernels run in order, so a step planned from now on finds what is kept in its place. What
        was reserved for it stays its own.
        """
        if self._layout is None or not self._layout.prompts or request.reserved_tokens:
            return
        kept = self.blocks_held(request, computed_tokens)
        self.free_blocks += request.num_blocks - kept
        self._empty_blocks += request.num_blocks - kept
        request.num_blocks = kept

    def _kept(self, request: Request, computed_tokens: int, reserved_tokens: int) -> int:
        if self._layout is not None and not reserved_tokens:
            return self._layout.pages(computed_tokens, self.block_size, request.prompt_tokens)
        return self.blocks_for(max(computed_tokens, reserved_tokens))

    def _full_blocks(self, tokens: int) -> int:
        """Blocks of a prompt that several sequences can read."""
        return tokens // self.block_size if self._grows else 0

    @staticmethod
    def _let_go(shared: SharedBlocks) -> int:
        """One holder less: how many of the blocks are still held by others."""
        shared.holders -= 1
        return shared.blocks if shared.holders else 0

    def _node_sizes(self, request: Request) -> list[tuple[int, int]]:
        """(node id, blocks of that node in this request): its chain, then its private rest."""
        if request.nodes is None:
            request.nodes = chain_nodes(self._chains, request.index, self.block_size)
            request.nodes.append((-1 - request.index - (request.sample << 40), _UNBOUNDED))
        return request.nodes

    def _register(self, request: Request, full: int, *, shared_only: bool) -> None:
        pinned = request.pinned
        if full <= request.pinned_blocks:
            return
        nodes, start = self._node_sizes(request), max(len(pinned) - 1, 0)
        before = request.pinned_blocks - (pinned[-1][1] if pinned else 0)
        for position in range(start, len(nodes)):
            node_id, size = nodes[position]
            depth = min(size, full - before)
            if depth <= 0 or (node_id < 0 and shared_only):
                break
            had = pinned[position][1] if position < len(pinned) else 0
            if not self._nodes.grow(node_id, had, depth):
                break  # someone else computed these blocks too; ours stay private
            if self._sides is not None:
                self._sides.cache_windows(node_id, had, depth)
            pinned[position : position + 1] = [(node_id, depth)]
            before += depth
            request.pinned_blocks = before
            if depth < size:
                break

    def make_empty(self, pages: int) -> None:
        """Evict until so many free pages are empty; there are as many free ones."""
        if pages > self._empty_blocks:
            self._empty_blocks += self._nodes.evict(pages - self._empty_blocks)

    def fill(self, pages: int) -> None:
        """So many empty pages hold cached content from now on; negative: no longer."""
        self._empty_blocks -= pages
