"""States and windows of cached content, by node: what is there, and how far a hit may reach.

`sim.cache_sides` says what they are for. Each entry has its place in the order of eviction
(`sim.eviction`).
"""

from __future__ import annotations

from sim.cache_nodes import CacheNodes
from sim.eviction import FreeRun

Hits = list[tuple[int, int]]
"""(node, leading blocks of it), in order."""


class Checkpoint:
    """A state at a boundary of a node: one entry of the order of eviction."""

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
        """As `sim.eviction.Owner` says."""
        return run

    def evicted(self, run: FreeRun) -> None:
        """As `sim.eviction.Owner` says."""
        del self.home[self.node_id][self.depth]
        if not self.home[self.node_id]:
            del self.home[self.node_id]


class Span:
    """The blocks of one window that are cached of a node: runs, none overlapping, ascending."""

    __slots__ = ("born", "home", "node_id", "runs", "uses")

    def __init__(self, home: dict[int, Span], node_id: int, born: int) -> None:
        self.home = home
        self.node_id = node_id
        self.born = born
        self.uses = 0
        self.runs: list[FreeRun] = []

    def goes_before(self, run: FreeRun) -> FreeRun:
        """As `sim.eviction.Owner` says."""
        return run

    def evicted(self, run: FreeRun) -> None:
        """As `sim.eviction.Owner` says."""
        if run.start == run.stop:
            self.runs.remove(run)
            if not self.runs:
                del self.home[self.node_id]


class States:
    """Checkpoints of recurrent states, ``pages`` each."""

    def __init__(self, nodes: CacheNodes, pages: int) -> None:
        self.pages = pages
        self._nodes = nodes
        self._checkpoints: dict[int, dict[int, FreeRun]] = {}
        self._fresh: set[tuple[int, int]] = set()

    def new_step(self) -> None:
        """States of the step before are there now."""
        self._fresh.clear()

    def is_fresh(self, hits: Hits) -> bool:
        """Whether the state at the end of ``hits`` is only computed in the step being planned."""
        return bool(hits) and hits[-1] in self._fresh

    def add(self, node_id: int, depth: int) -> None:
        """Cache a state; its pages are there."""
        owner = Checkpoint(self._checkpoints, node_id, depth, self._nodes.birth())
        run = self._nodes.order.add(owner, 0, 1, self.pages)
        self._checkpoints.setdefault(node_id, {})[depth] = run
        self._fresh.add((node_id, depth))

    def touch(self, node_id: int, depth: int) -> bool:
        """Make a state the LRU's youngest; False if none is cached there."""
        run = self._checkpoints.get(node_id, {}).get(depth)
        if run is not None:
            self._nodes.order.refresh(run)
        return run is not None

    def longest(self, hits: Hits, blocks: int) -> int:
        """The most of so many blocks of ``hits`` that end at a checkpoint."""
        stop = sum(depth for _, depth in hits)
        for node_id, depth in reversed(hits):
            stop -= depth  # where the node begins
            most = min(depth, blocks - stop)
            inside = (at for at in self._checkpoints.get(node_id, ()) if at <= most)
            found = max(inside, default=0)
            if found:
                return stop + found
        return 0


class Windows:
    """Blocks of the layers with one window: ``pages`` a block, ``needed`` before a hit's end."""

    def __init__(self, nodes: CacheNodes, needed: int, pages: int) -> None:
        self.needed = needed
        self.pages = pages
        self._nodes = nodes
        self._spans: dict[int, Span] = {}

    def cut(self, node_id: int, start: int, stop: int) -> int:
        """Take what is cached of ``[start, stop)`` out; returns how many blocks."""
        taken = 0
        for run in self.runs(node_id):
            low, high = max(run.start, start), min(run.stop, stop)
            if low >= high:
                continue
            taken += high - low
            if run.start < start:
                behind = run.stop
                run.stop = start
                if stop < behind:  # becomes as young as what is cached now
                    self.add(node_id, stop, behind)
            elif run.stop > stop:
                run.start = stop
            else:
                self._nodes.order.forget(run)
                run.stop = run.start
                run.owner.evicted(run)
        return taken

    def add(self, node_id: int, start: int, stop: int) -> None:
        """Cache blocks, of which none is; their pages are there."""
        span = self._spans.get(node_id)
        if span is None:
            span = self._spans[node_id] = Span(self._spans, node_id, self._nodes.birth())
        span.uses += 1
        span.runs.append(self._nodes.order.add(span, start, stop, self.pages))
        span.runs.sort(key=lambda one: one.start)

    def longest(self, hits: Hits, blocks: int) -> int:
        """The most of so many blocks of ``hits`` with the window before their end cached."""
        for start, stop in reversed(self._covered(hits)):
            most = min(stop, blocks)
            if most > start and (start == 0 or most - start >= self.needed):
                return most
        return 0

    def _covered(self, hits: Hits) -> list[tuple[int, int]]:
        """Stretches of the hit blocks that are cached, counted from the first, ascending."""
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
        """What is cached of a node, ascending."""
        span = self._spans.get(node_id)
        return [] if span is None else list(span.runs)
