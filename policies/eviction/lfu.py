"""Least frequently used: evict what the fewest requests have used."""

from sim.protocols import CachedContent


class LeastFrequentlyUsed:
    """Evict the content that the fewest requests have computed or hit; ties: least recently used.

    Uses are counted since the content entered the cache, for each prefix id or edge of a radix
    tree. Source: SGLang ``radix_eviction_policy lfu`` (hit count, then last access).
    """

    def priority(self, content: CachedContent) -> int:
        return content.uses
