"""First in, first out: evict what entered the cache first."""

from sim.protocols import CachedContent


class FirstInFirstOut:
    """Evict the content that entered the cache first, however often it was hit.

    A prefix is evicted only after everything that continues it. Source: SGLang
    ``radix_eviction_policy fifo`` (creation time of leaves).
    """

    def priority(self, content: CachedContent) -> int:
        return content.born
