"""The paged KV pool of one engine: how many blocks each request holds, and which are free.

A block is *held* by running requests or *free*. A free block is either empty (never used, or its
content has no hash) or caches content that can still be hit; empty blocks are reused first, cached
ones in the order of the eviction policy (LRU, a request's tail before its head). One block of the
pool is vLLM's null block. The prefix index (`sim.kv.prefix_index`) knows what is cached.
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
    """Conserves blocks exactly: ``free_blocks`` plus held blocks always equals
    ``usable_blocks``."""

    def __init__(
        self,
        num_blocks: int,
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

        With a ``layout`` that is not plain, a block is one page of it. Prefix hits count pages of
        the layers whose state grows, as far as windows and recurrent states are cached too
        (`sim.kv.hybrid`); a request that hits takes pages of its own for those. ``num_host_blocks``
        are for sequences that are swapped out. ``clock`` gives the time, for content with a
        lifetime. Raises ScenarioError if ids and blocks cannot be aligned.
        """
        if num_blocks < 2:
            raise ScenarioError(f"num_gpu_blocks is {num_blocks}; an engine needs at least 2")
        self.block_size = block_size
        self._layout = None if layout == PLAIN else layout
        self.usable_blocks = num_blocks - 1
        self.free_blocks = self.usable_blocks
        self.free_host_blocks = self._num_host_blocks = num_host_blocks
        self._grows = layout.grows
        # If no layer's state grows, or part of it is dropped, a prefix is never complete.
        self._prefix_caching = prefix_caching and layout.grows and not layout.prompts
        self._chains = chains if self._prefix_caching else None
        self._empty_blocks = self.usable_blocks
        self._clock = clock
        self._index = self._new_index(cache, layout, clock)
        self.tiers: Tiers | None = None
        """The tiers below device memory; None: there are none."""
        self.watched: Watch | None = None
        """How soon a watcher is told of cached and evicted content; None: there is no watcher."""
        self.evicting_ns: int | None = None
        """Time of the eviction being reported, while a jump reports; None: now."""

    def _new_index(
        self, cache: CacheConfig, layout: KVLayout, clock: Callable[[], int]
    ) -> PrefixIndex:
        policy = None if cache.make_eviction is None else cache.make_eviction()
        order = eviction_order(policy, clock)
        self.lifetime_ns = order.lifetime_ns
        layout = layout if self._prefix_caching else PLAIN
        if cache.prefix_index == "radix":
            return RadixIndex(order, self._chains, self.block_size, layout)
        return BlockHashes(self, order, self._chains, layout)

    def watch(self, on_change: Callable[[int, int], None], *, when: Watch) -> None:
        """Report (prefix id, number of its cached leading blocks) on every change."""
        self._index.watchers.on_change = (on_change,)
        self.watched = when

    def set_over(self, tiers: Tiers) -> None:
        """Write content that requests release, or the cache evicts, to these tiers."""
        self.tiers = tiers

    @property
    def tells_at_once(self) -> bool:
        """Whether a watcher must be told of each eviction at its time."""
        return self.watched == "immediate" or bool(self._index.watchers.on_evict)

    @property
    def index(self) -> PrefixIndex:
        """The index of cached content."""
        return self._index

    def expire(self) -> None:
        """Evict cached content past its lifetime."""
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
        """Find the request's cached leading blocks; changes nothing.

        At least one token is left to compute (vLLM's limit), so a full hit recomputes a block.
        """
        if not self._index:
            return Hit(0, 0, [])
        limit = self.hit_limit(request)
        return self._index.lookup(request, limit) if limit else Hit(0, 0, [])

    def hit_limit(self, request: Request) -> int:
        """Return the most leading blocks that need not be computed."""
        return (request.num_target_tokens - 1) // self.block_size if self._prefix_caching else 0

    def reservable(self, request: Request, reserve_tokens: int) -> int:
        """Return ``tokens``, or what the request needs if the pool could never hold ``tokens``;
        0 if it could not hold that either (the answer is decoded elsewhere)."""
        for tokens in (reserve_tokens, request.prompt_tokens + request.output_tokens):
            if self.blocks_for(tokens) + self.further_blocks(request, tokens) <= self.usable_blocks:
                return tokens
        return 0

    def fits(self, request: Request, hit: Hit, reserve_tokens: int = 0) -> bool:
        """vLLM's admission check: the whole known sequence, less its hits, fits into free blocks.

        With a reservation, that many tokens must fit; with several answers or hypotheses, each
        one's own blocks too.
        """
        if hit.is_fresh:
            return False
        need = self.blocks_for(max(request.num_target_tokens, reserve_tokens)) - hit.blocks
        if request.is_several:
            need += self.further_blocks(request, reserve_tokens)
        return need <= self.free_blocks - hit.evictable

    def further_blocks(self, request: Request, reserve_tokens: int = 0) -> int:
        """Return the blocks that a request holds in addition to those of its first sequence.

        Each further answer begins with a copy of the prompt's last block if that is partial, with
        window pages, and with its reservation. Hypotheses hold what they never share; reserved
        blocks cannot be shared beyond the prompt's.
        """
        own = self._kept(request, request.prompt_tokens, reserve_tokens)
        own -= self._full_blocks(request.prompt_tokens)
        if request.beams is None:
            return request.num_unforked * own
        apart = request.beams.blocks(self.block_size)
        return max(apart, (request.width - 1) * own) if reserve_tokens else apart

    def hold(self, request: Request, reserve_tokens: int) -> None:
        """Hold the blocks of ``reserve_tokens`` tokens, and `further_blocks`, from admission on."""
        if reserve_tokens:
            size = self.block_size
            request.reserved_tokens = -(-reserve_tokens // size) * size
            self.extend(request, request.reserved_tokens)
        if request.is_several:
            self.take(self.further_blocks(request, reserve_tokens))

    def fork(self, request: Request, answer: Request) -> None:
        """Start one more answer, which reads the prompt's full blocks and copies the rest.

        The request already held the answer's own blocks.
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
        """Move a sequence's blocks to the host; False and no change if too few host blocks are
        free."""
        if request.status is Status.DECODING:
            blocks = self._kept(request, computed_tokens, 0)  # without what it reserved
        else:
            blocks = self.blocks_for(computed_tokens)
        if not 0 < blocks <= self.free_host_blocks:
            return False
        self.free_host_blocks -= blocks
        request.swapped_blocks = blocks
        return True

    def swap_in(self, request: Request) -> int:
        """Move a sequence back to the device, where its blocks fit; return the number of blocks
        moved."""
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
        """Hold the blocks of that many tokens; False and no change if too few are free."""
        need = self.blocks_for(num_computed_tokens) - request.num_blocks
        if need <= 0:
            return True  # some of its blocks were reserved
        if need > self.free_blocks:
            return False
        self.take(need)
        request.num_blocks += need
        return True

    def take(self, blocks: int) -> None:
        """Hold ``blocks`` free blocks, evicting cached ones if no empty one is left."""
        self.free_blocks -= blocks
        if blocks > self._empty_blocks:
            self.make_empty(blocks)
        self._empty_blocks -= blocks

    def register(self, request: Request, num_hashed_tokens: int) -> None:
        """Make the full blocks of a request's first ``num_hashed_tokens`` tokens available for
        hits."""
        if self._chains is None or request.shared is not None:
            return
        full = num_hashed_tokens // self.block_size
        self._index.register(request, full, shared_only=True)

    def new_step(self) -> None:
        """Make the states computed by the step before usable; called when a step is planned."""
        self._index.new_step()

    def checkpoint(self, request: Request, tokens: int) -> None:
        """Keep the recurrent state after ``tokens`` tokens of a request, if they end a block."""
        if not tokens % self.block_size:
            self._index.checkpoint(request, tokens // self.block_size)

    def release(self, request: Request, num_hashed_tokens: int, *, will_return: bool) -> None:
        """Free all blocks of a request; hashed content stays cached until it is evicted.

        ``will_return`` (preempted): the request itself can hit its private content again.
        """
        if self.lifetime_ns is not None:
            self.expire()  # content that is gone does not displace content that comes now
        held = request.num_blocks
        # Content that can never be hit again need not be kept, except for its place in the LRU
        # behind content that can.
        can_be_hit = will_return or self._chains is not None
        is_kept = self._prefix_caching and request.shared is None
        is_kept = is_kept and bool(can_be_hit or self._index)
        if is_kept:
            full = min(num_hashed_tokens // self.block_size, held)
            self._index.register(request, full, shared_only=False)
        if self.tiers is not None:
            self.tiers.left(request)
        # Blocks without a hash, and copies of content that another request registered first, are
        # empty.
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
        """Lose all held and cached content at once, and tell watchers."""
        self._index.lose_all()
        if self.tiers is not None:
            self.tiers.lose()
        self.free_blocks = self._empty_blocks = self.usable_blocks
        self.free_host_blocks = self._num_host_blocks

    def blocks_held(self, request: Request, computed_tokens: int) -> int:
        """Return the blocks of a sequence with a computed prompt and ``computed_tokens``: those
        that are kept (or all and its reservation), and those it drafted into."""
        reserved_tokens = request.reserved_tokens
        computed_tokens += request.lookahead_tokens
        if self._layout is not None:
            return self._kept(request, computed_tokens, reserved_tokens)
        tokens = computed_tokens if computed_tokens > reserved_tokens else reserved_tokens
        return -(-tokens // self.block_size)

    def common_blocks(self, request: Request, holders: int) -> int:
        """Return the leading blocks of a running request that at least ``holders`` requests
        hold."""
        return self._index.common_blocks(request, holders)

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks of a sequence of ``tokens`` tokens, none of them dropped."""
        if self._layout is not None:
            return self._layout.pages(tokens, self.block_size)
        return -(-tokens // self.block_size)

    def drop(self, request: Request, computed_tokens: int) -> None:
        """Free the blocks of a computed prompt that exceed its budgets.

        Kernels run in order, so a step planned from now on finds the kept tokens in place. Reserved
        blocks stay with the request.
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
        """Return the blocks of a prompt that several sequences can read."""
        return tokens // self.block_size if self._grows else 0

    @staticmethod
    def _let_go(shared: SharedBlocks) -> int:
        """Remove one holder; return the number of blocks that others still hold."""
        shared.holders -= 1
        return shared.blocks if shared.holders else 0

    def make_empty(self, pages: int) -> None:
        """Evict until ``pages`` free pages are empty; at least that many are free."""
        if pages > self._empty_blocks:
            self._empty_blocks += self._index.evict(pages - self._empty_blocks)

    def fill(self, pages: int) -> None:
        """Count ``pages`` empty pages as holding cached content; negative: as empty again."""
        self._empty_blocks -= pages
