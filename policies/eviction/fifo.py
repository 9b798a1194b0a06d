"""What came to the cache first goes first."""

from sim.protocols import CachedContent


class FirstInFirstOut:
    """However often it is hit; a prefix goes only after all that continues it.

    Source: SGLang ``radix_eviction_policy fifo`` (creation time of leaves).
    """

    def priority(self, content: CachedContent) -> int:
        """Its place in the order of coming."""
        return content.born
