"""What an engine's prefix cache is like."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, Protocol

from sim.kv.tiers import TiersConfig
from sim.protocols import CachedContent, Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How cached content is found and dropped."""

    make_eviction: Callable[[], Eviction] | None = None
    """A fresh policy for each engine; None: least recently used."""
    prefix_index: Literal["block_hash", "radix"] = "block_hash"
    tiers: TiersConfig | None = None
    """What lies below device memory; None: nothing."""


PLAIN_CACHE = CacheConfig()
"""vLLM's: block hashes, the least recently used goes first."""


class Owner(CachedContent, Protocol):
    """Whose content a run is."""

    def evicted(self, run: FreeRun, /) -> None:
        """``run.stop`` has come down; nothing is left of the run where it equals its start."""

    def goes_before(self, run: FreeRun, /) -> FreeRun | None:
        """What of it has to go first, maybe the run itself; None while something continues it."""
        ...


class FreeRun:
    """Blocks ``[start, stop)`` of an owner, freed at one instant: one entry of the order."""

    __slots__ = ("freed_ns", "key", "owner", "pages", "start", "stop")

    def __init__(self, key: int, owner: Owner, start: int, stop: int, pages: int) -> None:
        self.key = key
        self.owner = owner
        self.start = start
        self.stop = stop
        self.pages = pages
        """Of a block."""
        self.freed_ns = 0
        """When it was last used, where content has a lifetime."""


class EvictionOrder(Protocol):
    """All runs of one cache."""

    needs_tree: bool
    """Whether owners have to know what continues them."""
    lifetime_ns: int | None
    """Content that nobody used for so long is gone; None: it stays until its place is needed."""

    def __len__(self) -> int: ...

    def add(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """Content that no request holds any more."""
        ...

    def refresh(self, run: FreeRun) -> None:
        """It has been used."""
        ...

    def forget(self, run: FreeRun) -> None:
        """It is held again, or gone: its owner knows."""
        ...

    def first(self) -> FreeRun:
        """What goes next; there is something."""
        ...

    def exposed(self, owner: Owner) -> None:
        """Nothing continues it any more."""
        ...

    def clear(self) -> None:
        """Everything is gone."""
        ...

    def pages(self) -> int:
        """Of all runs."""
        ...

    def next_expiry_ns(self) -> int | None:
        """When the next run's lifetime is over; None: never."""
        ...


class LeastRecent:
    """LRU: the order in which content was let go of. All operations O(1).

    Requests let go of their tail first, and of a prefix after all that continues it.
    """

    needs_tree = False

    def __init__(self, clock: Callable[[], int], lifetime_ns: int | None = None) -> None:
        self.lifetime_ns = lifetime_ns
        self._clock = clock
        self._runs: OrderedDict[int, FreeRun] = OrderedDict()
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """The youngest now."""
        run = FreeRun(self._next_key, owner, start, stop, pages)
        if self.lifetime_ns is not None:
            run.freed_ns = self._clock()
        self._next_key += 1
        self._runs[run.key] = run
        return run

    def refresh(self, run: FreeRun) -> None:
        """Make it the youngest."""
        self._runs.move_to_end(run.key)
        if self.lifetime_ns is not None:
            run.freed_ns = self._clock()

    def forget(self, run: FreeRun) -> None:
        """Drop a run."""
        del self._runs[run.key]

    def first(self) -> FreeRun:
        """The oldest."""
        return next(iter(self._runs.values()))

    def exposed(self, owner: Owner) -> None:
        """Its place does not depend on that."""

    def clear(self) -> None:
        """Everything is gone."""
        self._runs.clear()

    def pages(self) -> int:
        """Of all runs."""
        return sum((run.stop - run.start) * run.pages for run in self._runs.values())

    def next_expiry_ns(self) -> int | None:
        """Of the oldest."""
        if self.lifetime_ns is None or not self._runs:
            return None
        return self.first().freed_ns + self.lifetime_ns


class ByPriority:
    """The lowest priority first, ties in LRU order. O(log n) an operation.

    A priority is taken when content is let go of, or used again.
    """

    needs_tree = True

    def __init__(self, priority: Callable[[CachedContent], Any]) -> None:
        self.lifetime_ns: int | None = None
        self._priority = priority
        self._runs: dict[int, FreeRun] = {}
        self._heap: list[tuple[Any, int, FreeRun]] = []
        self._covered: dict[Owner, list[FreeRun]] = {}
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """Content that no request holds any more."""
        run = FreeRun(self._next_key, owner, start, stop, pages)
        self._push(run)
        return run

    def _push(self, run: FreeRun) -> None:
        run.key = self._next_key
        self._next_key += 1
        self._runs[run.key] = run
        heappush(self._heap, (self._priority(run.owner), run.key, run))

    def refresh(self, run: FreeRun) -> None:
        """Take its priority anew."""
        run.owner.uses += 1
        del self._runs[run.key]
        self._push(run)

    def forget(self, run: FreeRun) -> None:
        """Drop a run."""
        del self._runs[run.key]

    def first(self) -> FreeRun:
        """The tail of the lowest that nothing continues."""
        while True:
            _, key, run = self._heap[0]
            if self._runs.get(key) is run:
                first = run.owner.goes_before(run)
                if first is not None:
                    return first
                self._covered.setdefault(run.owner, []).append(run)
            heappop(self._heap)

    def exposed(self, owner: Owner) -> None:
        """It can go now: back to where its runs belong, if they were passed over."""
        for run in self._covered.pop(owner, ()):
            if self._runs.get(run.key) is run:
                heappush(self._heap, (self._priority(owner), run.key, run))

    def clear(self) -> None:
        """Everything is gone."""
        self._runs.clear()
        self._heap.clear()
        self._covered.clear()

    def pages(self) -> int:
        """Of all runs."""
        return sum((run.stop - run.start) * run.pages for run in self._runs.values())

    def next_expiry_ns(self) -> int | None:
        """Nothing has a lifetime."""
        return None


def eviction_order(policy: Eviction | None, clock: Callable[[], int]) -> EvictionOrder:
    """The order that a policy asks for; None: LRU."""
    priority = getattr(policy, "priority", None)
    if priority is not None:
        return ByPriority(priority)
    return LeastRecent(clock, getattr(policy, "lifetime_ns", None))


def evict(order: EvictionOrder, pages: int) -> int:
    """Drop at least so many free pages, each run from its tail, in whole blocks; how many."""
    evicted = 0
    while evicted < pages:
        run = order.first()
        blocks = min(-(-(pages - evicted) // run.pages), run.stop - run.start)
        evicted += blocks * run.pages
        run.stop -= blocks
        if run.start == run.stop:
            order.forget(run)
        run.owner.evicted(run)
    return evicted


def expire(order: EvictionOrder, now_ns: int) -> int:
    """Drop what has outlived its lifetime; returns how many pages."""
    expired = 0
    while True:
        due_ns = order.next_expiry_ns()
        if due_ns is None or due_ns > now_ns:
            return expired
        run = order.first()
        expired += evict(order, (run.stop - run.start) * run.pages)
