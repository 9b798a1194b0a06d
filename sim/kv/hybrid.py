"""What a prefix hit needs beside its leading blocks: windows before its end, and a state at it.

As in vLLM's hybrid KV cache manager, layers with a sliding window cache a block of their own for
each block of content, and a hit needs the last of them; recurrent layers cache their state at some
block boundaries (checkpoints), and a hit can only end at one. All of it is evicted in the order in
which it was freed, together with the blocks of `sim.kv.cached_content`.

Here this content is free from the start: running requests hold windows and states of their own
(`sim.kv.layout`), so a little is counted twice while they run. It is tracked by node, as leading
blocks are.
"""

from __future__ import annotations

from typing import Protocol

from sim.kv.cached_content import CacheNodes
from sim.kv.eviction import FreeRun
from sim.kv.layout import KVLayout
from sim.kv.prefix_index import Hit

Hits = list[tuple[int, int]]
"""(node, number of its leading blocks) in order."""


class Checkpoint:
    """A state at a boundary of a node: one entry of the eviction order."""

    __slots__ = ("born", "depth", "home", "node_id", "uses")

    def __init__(
        self, home: dict[int, dict[int, FreeRun]], node_id: int, depth: int, born: int
    ) -> None:
        self.home = home
        self.node_id = node_id
        self.depth = depth
        self.born = born
        self.uses = 1

    def goes_before(self, run: FreeRun) -> FreeRun:
        """Return the run to evict first; see `sim.kv.eviction.Owner`."""
        return run

    def evicted(self, run: FreeRun) -> None:
        """Account for an evicted run; see `sim.kv.eviction.Owner`."""
        del self.home[self.node_id][self.depth]
        if not self.home[self.node_id]:
            del self.home[self.node_id]


class Span:
    """The cached window blocks of a node: disjoint runs, ascending."""

    __slots__ = ("born", "home", "node_id", "runs", "uses")

    def __init__(self, home: dict[int, Span], node_id: int, born: int) -> None:
        self.home = home
        self.node_id = node_id
        self.born = born
        self.uses = 0
        self.runs: list[FreeRun] = []

    def goes_before(self, run: FreeRun) -> FreeRun:
        """Return the run to evict first; see `sim.kv.eviction.Owner`."""
        return run

    def evicted(self, run: FreeRun) -> None:
        """Account for an evicted run; see `sim.kv.eviction.Owner`."""
        if run.start == run.stop:
            self.runs.remove(run)
            if not self.runs:
                del self.home[self.node_id]


class States:
    """Checkpoints of recurrent states, ``pages`` pages each."""

    def __init__(self, nodes: CacheNodes, pages: int) -> None:
        self.pages = pages
        self._nodes = nodes
        self._checkpoints: dict[int, dict[int, FreeRun]] = {}
        self._fresh: set[tuple[int, int]] = set()

    def new_step(self) -> None:
        """Make the states of the step before usable."""
        self._fresh.clear()

    def is_fresh(self, hits: Hits) -> bool:
        """Whether the state at the end of ``hits`` is computed only by the step being planned."""
        return bool(hits) and hits[-1] in self._fresh

    def add(self, node_id: int, depth: int) -> None:
        """Cache a state; its pages are allocated."""
        owner = Checkpoint(self._checkpoints, node_id, depth, self._nodes.birth())
        run = self._nodes.order.add(owner, 0, 1, self.pages)
        self._checkpoints.setdefault(node_id, {})[depth] = run
        self._fresh.add((node_id, depth))

    def touch(self, node_id: int, depth: int) -> bool:
        """Make a state the youngest in LRU order; False if none is cached there."""
        run = self._checkpoints.get(node_id, {}).get(depth)
        if run is None:
            return False
        self._nodes.order.refresh(run)
        return True

    def longest(self, hits: Hits, blocks: int) -> int:
        """Return the most leading blocks of ``hits``, up to ``blocks``, that end at a
        checkpoint."""
        stop = sum(depth for _, depth in hits)
        for node_id, depth in reversed(hits):
            stop -= depth  # position of the node's first block
            most = min(depth, blocks - stop)
            inside = (at for at in self._checkpoints.get(node_id, ()) if at <= most)
            found = max(inside, default=0)
            if found:
                return stop + found
        return 0


class Windows:
    """Window blocks of the layers with one window size: ``pages`` per block, ``needed`` blocks
    before a hit's end."""

    def __init__(self, nodes: CacheNodes, needed: int, pages: int) -> None:
        self.needed = needed
        self.pages = pages
        self._nodes = nodes
        self._spans: dict[int, Span] = {}

    def cut(self, node_id: int, start: int, stop: int) -> int:
        """Remove what is cached of ``[start, stop)``; return the number of blocks."""
        taken = 0
        for run in self.runs(node_id):
            low, high = max(run.start, start), min(run.stop, stop)
            if low >= high:
                continue
            taken += high - low
            if run.start < start:
                behind = run.stop
                run.stop = start
                if stop < behind:  # becomes as young as content cached now
                    self.add(node_id, stop, behind)
            elif run.stop > stop:
                run.start = stop
            else:
                self._nodes.order.forget(run)
                run.stop = run.start
                run.owner.evicted(run)
        return taken

    def add(self, node_id: int, start: int, stop: int) -> None:
        """Cache blocks that are not cached yet; their pages are allocated."""
        if node_id not in self._spans:
            self._spans[node_id] = Span(self._spans, node_id, self._nodes.birth())
        span = self._spans[node_id]
        span.uses += 1
        span.runs.append(self._nodes.order.add(span, start, stop, self.pages))
        span.runs.sort(key=lambda one: one.start)

    def longest(self, hits: Hits, blocks: int) -> int:
        """Return the most leading blocks of ``hits``, up to ``blocks``, whose window is cached
        before their end."""
        for start, stop in reversed(self._covered(hits)):
            most = min(stop, blocks)
            if most > start and (start == 0 or most - start >= self.needed):
                return most
        return 0

    def _covered(self, hits: Hits) -> list[tuple[int, int]]:
        """Return the cached stretches of the hit blocks, counted from the first block,
        ascending."""
        found: list[tuple[int, int]] = []
        base = 0
        for node_id, depth in hits:
            for run in self.runs(node_id):
                start, stop = base + min(run.start, depth), base + min(run.stop, depth)
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                elif start < stop:
                    found.append((start, stop))
            base += depth
        return found

    def runs(self, node_id: int) -> list[FreeRun]:
        """Return the cached runs of a node, ascending."""
        return list(self._spans[node_id].runs) if node_id in self._spans else []


class Pool(Protocol):
    """The pages that content is cached in; `sim.kv.pool.KVCache` is one."""

    @property
    def block_size(self) -> int:
        """Number of tokens per block."""

    @property
    def free_blocks(self) -> int:
        """Pages that no request holds, empty or with cached content."""

    def make_empty(self, pages: int, /) -> None:
        """Evict until ``pages`` free pages are empty."""

    def fill(self, pages: int, /) -> None:
        """Count ``pages`` empty pages as holding cached content; negative: as empty again."""


class CacheSides:
    """All content cached beside leading blocks, for one layout; none, if it is full attention
    alone."""

    def __init__(self, pool: Pool, nodes: CacheNodes, layout: KVLayout) -> None:
        self._pool = pool
        self._nodes = nodes
        self.states = [States(nodes, layout.checkpoint_pages)] if layout.checkpoint_pages else []
        """The recurrent states of all layers together, if there are any."""
        self._windows = [
            # The token computed next is in its window too.
            Windows(nodes, -(-(window_tokens - 1) // pool.block_size), groups)
            for window_tokens, groups in layout.windows
        ]
        self._all: list[States | Windows] = [*self.states, *self._windows]

    def usable(self, hit: Hit) -> Hit:
        """Return the longest part of a hit after which all layers can begin."""
        if not self._all:
            return hit
        blocks = hit.blocks
        while True:
            found = blocks
            for side in self._all:
                found = side.longest(hit.nodes, found)
            if found == blocks:
                break
            blocks = found
        hits = first_blocks(hit.nodes, blocks)
        held = (min(depth, node.pinned) for n, depth in hits if (node := self._nodes.get(n)))
        is_fresh = any(states.is_fresh(hits) for states in self.states)
        return Hit(blocks, blocks - sum(held), hits, hit.blocks, is_fresh)

    def checkpoint(self, blocks: Hits) -> None:
        """Keep the recurrent states after ``blocks``, if pages are free for them."""
        pool = self._pool
        for states in self.states:
            if not states.touch(*blocks[-1]) and states.pages <= pool.free_blocks:
                pool.make_empty(states.pages)
                pool.fill(states.pages)
                states.add(*blocks[-1])

    def touch(self, blocks: Hits) -> None:
        """Mark the windows and the states that these blocks need as used now."""
        for window in self._windows:
            left = window.needed
            for node_id, depth in reversed(blocks):
                if left <= 0:
                    break
                self._cache(window, node_id, max(0, depth - left), depth)
                left -= depth
        for states in self.states:
            if blocks:
                states.touch(*blocks[-1])

    def cache_windows(self, node_id: int, start: int, stop: int) -> None:
        """Cache the window blocks of newly computed blocks of a node."""
        for window in self._windows:
            self._cache(window, node_id, start, stop)

    def _cache(self, window: Windows, node_id: int, start: int, stop: int) -> None:
        """Cache the last blocks of a stretch, as many as there are free pages for."""
        self._pool.fill(-window.pages * window.cut(node_id, start, stop))
        start = max(start, stop - self._pool.free_blocks // window.pages)
        if start < stop:
            pages = window.pages * (stop - start)
            self._pool.make_empty(pages)
            self._pool.fill(pages)
            window.add(node_id, start, stop)


def first_blocks(hits: Hits, blocks: int) -> Hits:
    """Return the first ``blocks`` blocks of ``hits``."""
    found: Hits = []
    for node_id, depth in hits:
        if not blocks:
            break
        depth = min(depth, blocks)
        found.append((node_id, depth))
        blocks -= depth
    return found
