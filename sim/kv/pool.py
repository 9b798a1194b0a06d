"""The paged KV pool of one engine: who holds how many blocks, and which are free.

A block is *held* by running requests or *free*. A free block is either empty (never used, or its
content has no hash) or still caches content that can be hit; empty ones are reused first, cached
ones as the eviction policy says (LRU, a request's tail before its head). One block of the pool is
vLLM's null block. What is cached, and of whom, is the prefix index's (`sim.kv.prefix_index`).
"""

from __future__ import annotations

from collections.abc import Callable

from sim.errors import ScenarioError
from sim.kv.block_hashes import BlockHashes
from sim.kv.eviction import PLAIN_CACHE, CacheConfig, eviction_order
from sim.kv.layout import PLAIN, KVLayout
from sim.kv.prefix_index import Hit, PrefixIndex
from sim.kv.radix_tree import RadixIndex
from sim.kv.tiers import Tiers
from sim.protocols import Watch
from sim.request import Request, SharedBlocks, Status
from sim.request_table import PrefixChains


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
        cache: CacheConfig = PLAIN_CACHE,
        clock: Callable[[], int] = int,
    ) -> None:
        """``chains`` are the prefix ids of the request table, if it has any.

        With a ``layout`` that is not plain, a block is a page of it. Prefix hits are of the pages
        of layers whose state grows, as far as windows and recurrent states are cached too
        (`sim.kv.hybrid`); a request that hits takes pages of its own for those.
        ``num_host_blocks`` are for sequences that are swapped out. ``clock`` tells what time it is,
        for content with a lifetime.
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
        self._clock = clock
        self._index = self._new_index(cache, clock)
        self.tiers: Tiers | None = None
        """What lies below; None: nothing."""
        self.watched: Watch | None = None
        """How soon someone is told of what is cached and evicted; None: nobody is."""
        self.evicting_ns: int | None = None
        """When a jump evicted what its watcher is told of; None: now."""

    def _new_index(self, cache: CacheConfig, clock: Callable[[], int]) -> PrefixIndex:
        policy = None if cache.make_eviction is None else cache.make_eviction()
        order = eviction_order(policy, clock)
        self.lifetime_ns = order.lifetime_ns
        layout = self._layout if self._prefix_caching else None
        if cache.prefix_index == "radix":
            return RadixIndex(order, self._chains, self.block_size, layout)
        return BlockHashes(self, order, self._chains, layout)

    def watch(self, on_change: Callable[[int, int], None], *, when: Watch) -> None:
        """Tell of (prefix id, its resident leading blocks) whenever that changes."""
        self._index.on_change = on_change
        self.watched = when

    def set_over(self, tiers: Tiers) -> None:
        """What requests leave, or the cache drops, goes down these tiers."""
        self.tiers = tiers

    @property
    def tells_at_once(self) -> bool:
        """Whether anyone has to be told of each eviction when it happens."""
        return self.watched == "immediate" or self._index.on_evict is not None

    @property
    def index(self) -> PrefixIndex:
        """What is cached."""
        return self._index

    def expire(self) -> None:
        """Drop cached content whose lifetime is over."""
        self._empty_blocks += self._index.expire(self._clock())

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
        return self._index.free_pages

    def lookup(self, request: Request) -> Hit:
        """Find the request's resident leading blocks; changes nothing.

        At least one token is left to compute (vLLM's limit), so a full hit recomputes a block.
        """
        if not self._index:
            return Hit(0, 0, [])
        limit = self.hit_limit(request)
        return self._index.lookup(request, limit) if limit else Hit(0, 0, [])

    def hit_limit(self, request: Request) -> int:
        """The most leading blocks that need not be computed."""
        return (request.num_target_tokens - 1) // self.block_size if self._prefix_caching else 0

    def reservable(self, request: Request, reserve_tokens: int) -> int:
        """So many tokens, or what the request needs where the pool could never hold so many; 0
        where it could not hold that (the answer is decoded elsewhere)."""
        for tokens in (reserve_tokens, request.prompt_tokens + request.output_tokens):
            if self.blocks_for(tokens) + self.further_blocks(request, tokens) <= self.usable_blocks:
                return tokens
        return 0

    def fits(self, request: Request, hit: Hit, reserve_tokens: int = 0) -> bool:
        """vLLM's admission gate: the whole known sequence, less its hits, fits into free blocks.

        With a reservation, that many tokens have to fit; of several answers, each one's own blocks,
        and of hypotheses too.
        """
        if hit.is_fresh:
            return False
        need = self.blocks_for(max(request.num_target_tokens, reserve_tokens)) - hit.blocks
        if request.is_several:
            need += self.further_blocks(request, reserve_tokens)
        return need <= self.free_blocks - hit.evictable

    def further_blocks(self, request: Request, reserve_tokens: int = 0) -> int:
        """Blocks beside those of its first sequence that a request holds.

        Those that each further answer begins with: a copy of the prompt's last block if that is
        partial, pages of windows, and what is reserved. Of hypotheses, what they do not share to
        the end; reserved, blocks cannot be shared beyond the prompt's.
        """
        own = self._kept(request, request.prompt_tokens, reserve_tokens)
        own -= self._full_blocks(request.prompt_tokens)
        if request.beams is None:
            return request.num_unforked * own
        apart = request.beams.blocks(self.block_size)
        return max(apart, (request.width - 1) * own) if reserve_tokens else apart

    def hold(self, request: Request, reserve_tokens: int) -> None:
        """Hold, from its admission on, blocks of that many tokens, and `further_blocks`."""
        if reserve_tokens:
            size = self.block_size
            request.reserved_tokens = -(-reserve_tokens // size) * size
            self.extend(request, request.reserved_tokens)
        if request.is_several:
            self.take(self.further_blocks(request, reserve_tokens))

    def fork(self, request: Request, answer: Request) -> None:
        """Let one more answer begin: it reads the prompt's full blocks and copies the rest.

        The blocks of its own were held by the request.
        """
        if request.shared is None:
            rest = self._full_blocks(request.prompt_tokens) - request.pinned_blocks
            request.shared = SharedBlocks(max(rest, 0), 1)
        request.shared.holders += 1
        answer.shared = request.shared
        self._index.share(request, answer)
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
        self._index.pin(request, hit)
        self.free_blocks -= hit.evictable
        request.num_blocks = hit.blocks
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
        self._index.register(request, full, shared_only=True)

    def new_step(self) -> None:
        """A step is planned: states that the one before computes can be used."""
        self._index.new_step()

    def checkpoint(self, request: Request, tokens: int) -> None:
        """Keep the recurrent state after so many of its tokens, if they end a block."""
        if not tokens % self.block_size:
            self._index.checkpoint(request, tokens // self.block_size)

    def release(self, request: Request, num_hashed_tokens: int, *, will_return: bool) -> None:
        """Free all blocks of a request; hashed content stays cached until it is evicted.

        ``will_return`` (preempted): its private content can be hit again, by itself.
        """
        if self.lifetime_ns is not None:
            self.expire()  # what is gone takes the place of no content that comes now
        held = request.num_blocks
        # Content that nobody can hit again need not be kept, except for its place in the LRU
        # behind content that can.
        can_be_hit = will_return or self._chains is not None
        is_kept = self._prefix_caching and request.shared is None
        is_kept = is_kept and bool(can_be_hit or self._index)
        if is_kept:
            full = min(num_hashed_tokens // self.block_size, held)
            self._index.register(request, full, shared_only=False)
        if self.tiers is not None:
            self.tiers.left(request)
        # Blocks without a hash, and copies of what another request registered first, are empty.
        if request.is_several:
            held += self.further_blocks(request, request.reserved_tokens)
        freed = held - request.pinned_blocks
        if request.shared is not None:
            freed -= self._let_go(request.shared)
            request.shared = None
        self._empty_blocks += freed
        if request.pinned:
            freed += self._index.unpin(request)
        self.free_blocks += freed
        if is_kept:
            self._index.released(request, full)
        request.pinned.clear()
        request.num_blocks = request.pinned_blocks = request.reserved_tokens = 0
        request.lookahead_tokens = 0

    def lose_all(self) -> None:
        """Everything held and cached is gone at once; those who watch are told."""
        self._index.lose_all()
        if self.tiers is not None:
            self.tiers.lose()
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
        return self._index.common_blocks(request, holders)

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

    def make_empty(self, pages: int) -> None:
        """Evict until so many free pages are empty; there are as many free ones."""
        if pages > self._empty_blocks:
            self._empty_blocks += self._index.evict(pages - self._empty_blocks)

    def fill(self, pages: int) -> None:
        """So many empty pages hold cached content from now on; negative: no longer."""
        self._empty_blocks -= pages
