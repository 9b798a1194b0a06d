"""Policies that choose what a prefix cache evicts when blocks are needed."""

from __future__ import annotations

from sim.clock import to_ns
from sim.errors import ScenarioError
from sim.protocols import CachedContent


class LeastRecentlyUsed:
    """Evict in order of last use, the default of `sim.protocols.Eviction`, vLLM and SGLang."""


class LeastFrequentlyUsed:
    """Evict the content that the fewest requests have computed or hit; ties: least recently used.

    Uses are counted since the content entered the cache, for each prefix id or edge of a radix
    tree. Source: SGLang ``radix_eviction_policy lfu`` (hit count, then last access).
    """

    def priority(self, content: CachedContent) -> int:
        return content.uses


class FirstInFirstOut:
    """Evict the content that entered the cache first, however often it was hit.

    A prefix is evicted only after everything that continues it. Source: SGLang
    ``radix_eviction_policy fifo`` (creation time of leaves).
    """

    def priority(self, content: CachedContent) -> int:
        return content.born


class TimeToLive:
    """Evict content that has not been used for ``seconds``, as prompt caches of APIs do.

    Each use restarts the time. If blocks are needed before, the least recently used content goes
    first. An engine drops expired content at its next scheduler call, and a lookup never finds it.
    """

    def __init__(self, *, seconds: float) -> None:
        if not 1e-9 <= seconds <= 4e9:
            raise ScenarioError(f"seconds is {seconds}; it is from 1e-9 to 4e9")
        self.lifetime_ns = to_ns(seconds)
