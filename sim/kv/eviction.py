"""The order in which cached content that no request holds is evicted."""

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
    """How an engine's prefix cache finds and drops content."""

    make_eviction: Callable[[], Eviction] | None = None
    """Makes a fresh policy for each engine; None: least recently used."""
    prefix_index: Literal["block_hash", "radix"] = "block_hash"
    tiers: TiersConfig | None = None
    """The tiers below device memory; None: there are none."""


PLAIN_CACHE = CacheConfig()
"""vLLM's prefix cache: block hashes, least recently used content evicted first."""


class Owner(CachedContent, Protocol):
    """The owner of the content of a run: a node, a checkpoint or a window's blocks."""

    def evicted(self, run: FreeRun, /) -> None:
        """``run.stop`` has decreased; the run is gone if it equals ``run.start``."""

    def goes_before(self, run: FreeRun, /) -> FreeRun | None:
        """Return the run of this owner to evict first, maybe ``run`` itself; None while other
        content continues it."""
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
        """Pages per block."""
        self.freed_ns = 0
        """Time of the last use, if content has a lifetime."""


class EvictionOrder(Protocol):
    """The evictable runs of one cache, in the order of eviction."""

    needs_tree: bool
    """Whether owners must track which nodes continue them."""
    lifetime_ns: int | None
    """Content unused for this long is evicted; None: content stays until its space is needed."""

    def __len__(self) -> int: ...

    def add(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """Add content that no request holds any more."""
        ...

    def refresh(self, run: FreeRun) -> None:
        """Mark a run as used now."""
        ...

    def forget(self, run: FreeRun) -> None:
        """Remove a run that is held again or gone; its owner knows."""
        ...

    def first(self) -> FreeRun:
        """The next run to evict. The order must not be empty."""
        ...

    def exposed(self, owner: Owner) -> None:
        """Called when the last child of ``owner`` is evicted, so that its tail may be evicted
        next."""
        ...

    def clear(self) -> None:
        """Remove all runs from the order."""
        ...

    def pages(self) -> int:
        """Pages of all runs together."""
        ...

    def next_expiry_ns(self) -> int | None:
        """Return when the next run expires; None: never."""
        ...


class LeastRecent:
    """LRU: content is evicted in the order in which it was released. All operations are O(1).

    Requests release their tail first, and a prefix after everything that continues it.
    """

    needs_tree = False
    lifetime_ns: int | None = None

    def __init__(self) -> None:
        self._runs: OrderedDict[int, FreeRun] = OrderedDict()
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """Add a run as the youngest."""
        run = FreeRun(self._next_key, owner, start, stop, pages)
        self._next_key += 1
        self._runs[run.key] = run
        return run

    def refresh(self, run: FreeRun) -> None:
        """Make a run the youngest."""
        self._runs.move_to_end(run.key)

    def forget(self, run: FreeRun) -> None:
        """Remove a run from the order."""
        del self._runs[run.key]

    def first(self) -> FreeRun:
        """Return the oldest run."""
        return next(iter(self._runs.values()))

    def exposed(self, owner: Owner) -> None:
        """LRU order does not depend on children."""

    def clear(self) -> None:
        """Remove all runs from the order."""
        self._runs.clear()

    def pages(self) -> int:
        """Pages of all runs together."""
        return sum((run.stop - run.start) * run.pages for run in self._runs.values())

    def next_expiry_ns(self) -> int | None:
        """Content does not expire: always None."""
        return None


class Expiring(LeastRecent):
    """LRU whose content is evicted too if it was not used for a lifetime."""

    def __init__(self, clock: Callable[[], int], lifetime_ns: int) -> None:
        super().__init__()
        self.lifetime_ns: int = lifetime_ns
        self._clock = clock

    def add(self, owner: Owner, start: int, stop: int, pages: int = 1) -> FreeRun:
        """Add a run as the youngest, used now."""
        run = super().add(owner, start, stop, pages)
        run.freed_ns = self._clock()
        return run

    def refresh(self, run: FreeRun) -> None:
        """Make a run the youngest, used now."""
        super().refresh(run)
        run.freed_ns = self._clock()

    def next_expiry_ns(self) -> int | None:
        """Return when the oldest run expires; None: there is none."""
        return self.first().freed_ns + self.lifetime_ns if self._runs else None


class ByPriority:
    """Lowest priority first, ties in LRU order. O(log n) per operation.

    A run's priority is read when its content is released, and again when it is used.
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
        """Add content that no request holds any more."""
        run = FreeRun(self._next_key, owner, start, stop, pages)
        self._push(run)
        return run

    def _push(self, run: FreeRun) -> None:
        run.key = self._next_key
        self._next_key += 1
        self._runs[run.key] = run
        heappush(self._heap, (self._priority(run.owner), run.key, run))

    def refresh(self, run: FreeRun) -> None:
        """Read the priority of a used run again."""
        run.owner.uses += 1
        del self._runs[run.key]
        self._push(run)

    def forget(self, run: FreeRun) -> None:
        """Remove a run from the order."""
        del self._runs[run.key]

    def first(self) -> FreeRun:
        """Return the tail of the lowest run that no other content continues."""
        while True:
            _, key, run = self._heap[0]
            if self._runs.get(key) is run:
                first = run.owner.goes_before(run)
                if first is not None:
                    return first
                self._covered.setdefault(run.owner, []).append(run)
            heappop(self._heap)

    def exposed(self, owner: Owner) -> None:
        """Put back the runs of ``owner`` that were skipped while other content continued them."""
        for run in self._covered.pop(owner, ()):
            if self._runs.get(run.key) is run:
                heappush(self._heap, (self._priority(owner), run.key, run))

    def clear(self) -> None:
        """Remove all runs from the order."""
        self._runs.clear()
        self._heap.clear()
        self._covered.clear()

    def pages(self) -> int:
        """Pages of all runs together."""
        return sum((run.stop - run.start) * run.pages for run in self._runs.values())

    def next_expiry_ns(self) -> int | None:
        """Priorities have no lifetime: always None."""
        return None


def eviction_order(policy: Eviction | None, clock: Callable[[], int]) -> EvictionOrder:
    """Return the order that a policy asks for; None: LRU."""
    priority = getattr(policy, "priority", None)
    if priority is not None:
        return ByPriority(priority)
    lifetime_ns = getattr(policy, "lifetime_ns", None)
    return LeastRecent() if lifetime_ns is None else Expiring(clock, lifetime_ns)


def evict(order: EvictionOrder, pages: int) -> int:
    """Evict at least ``pages`` free pages, each run from its tail in whole blocks; return the
    number."""
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
    """Evict content past its lifetime; return the number of pages."""
    expired = 0
    while True:
        due_ns = order.next_expiry_ns()
        if due_ns is None or due_ns > now_ns:
            return expired
        run = order.first()
        expired += evict(order, (run.stop - run.start) * run.pages)
