"""What a prefix hit needs beside its leading blocks: windows before its end, and a state at it.

As in vLLM's hybrid KV cache manager, layers with a window cache a block of their own for each
block of content, and a hit needs the last of them; recurrent layers cache their state at some
boundaries of blocks (checkpoints), and a hit can only end at one. All of it is evicted in the
order it was freed in, together with the blocks of `sim.cache_nodes`.

Here this content is free from the start: what running requests hold of windows and states is
theirs (`sim.kv_layout`), so that a little is counted twice while they run. It is kept by node, as
leading blocks are.
"""

from __future__ import annotations

from typing import Protocol

from sim.cache_nodes import CacheNodes
from sim.cache_planes import Hits, States, Windows
from sim.kv_layout import KVLayout


class Pool(Protocol):
    """The pages that content is cached in: `sim.kv_cache.KVCache`."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def free_blocks(self) -> int:
        """Pages that no request holds, empty or with cached content."""

    def make_empty(self, pages: int, /) -> None:
        """Evict until so many free pages are empty."""

    def fill(self, pages: int, /) -> None:
        """So many empty pages hold cached content from now on; negative: no longer."""


class CacheSides:
    """All that is cached beside leading blocks, for one layout."""

    def __init__(self, pool: Pool, nodes: CacheNodes, layout: KVLayout) -> None:
        self._pool = pool
        self._nodes = nodes
        self._states = States(nodes, layout.checkpoint_pages) if layout.checkpoint_pages else None
        self._windows = [
            # The token computed next is in its window too.
            Windows(nodes, -(-(window_tokens - 1) // pool.block_size), groups)
            for window_tokens, groups in layout.windows
        ]

    def usable(self, hits: Hits) -> tuple[Hits, int, bool]:
        """As much of leading blocks as all layers can begin after.

        With it: how many of the blocks no request holds, and whether the state at its end is only
        computed in the step being planned.
        """
        blocks = sum(depth for _, depth in hits)
        while True:
            found = blocks if self._states is None else self._states.longest(hits, blocks)
            for window in self._windows:
                found = window.longest(hits, found)
            if found == blocks:
                break
            blocks = found
        hits = first_blocks(hits, blocks)
        held = (min(depth, node.pinned) for n, depth in hits if (node := self._nodes.get(n)))
        is_fresh = self._states is not None and self._states.is_fresh(hits)
        return hits, blocks - sum(held), is_fresh

    def new_step(self) -> None:
        """States of the step before are there now."""
        if self._states is not None:
            self._states.new_step()

    def checkpoint(self, blocks: Hits) -> None:
        """Keep the recurrent state at the end of so many blocks, if a page is free for it."""
        states, pool = self._states, self._pool
        if states is None or states.touch(*blocks[-1]) or states.pages > pool.free_blocks:
            return
        pool.make_empty(states.pages)
        pool.fill(states.pages)
        states.add(*blocks[-1])

    def touch(self, blocks: Hits) -> None:
        """What these blocks need beside them has been used: it is the LRU's youngest."""
        for window in self._windows:
            left = window.needed
            for node_id, depth in reversed(blocks):
                if left <= 0:
                    break
                self._cache(window, node_id, max(0, depth - left), depth)
                left -= depth
        if self._states is not None and blocks:
            self._states.touch(*blocks[-1])

    def cache_windows(self, node_id: int, start: int, stop: int) -> None:
        """Blocks of a node have been computed: windows have theirs."""
        for window in self._windows:
            self._cache(window, node_id, start, stop)

    def _cache(self, window: Windows, node_id: int, start: int, stop: int) -> None:
        """As many of the last blocks as there are free pages for."""
        self._pool.fill(-window.pages * window.cut(node_id, start, stop))
        start = max(start, stop - self._pool.free_blocks // window.pages)
        if start < stop:
            pages = window.pages * (stop - start)
            self._pool.make_empty(pages)
            self._pool.fill(pages)
            window.add(node_id, start, stop)


def first_blocks(hits: Hits, blocks: int) -> Hits:
    """The first so many blocks of ``hits``."""
    found: Hits = []
    for node_id, depth in hits:
        if not blocks:
            break
        depth = min(depth, blocks)
        found.append((node_id, depth))
        blocks -= depth
    return found
