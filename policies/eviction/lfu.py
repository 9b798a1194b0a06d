"""The least often used content goes first."""

from sim.protocols import CachedContent


class LeastFrequentlyUsed:
    """By requests that computed or hit it since it came to the cache; ties: least recently used.

    A block of a prefix counts with those that its prefix id, or its edge of a radix tree, names.

    Source: SGLang ``radix_eviction_policy lfu`` (hit count, then last access).
    """

    def priority(self, content: CachedContent) -> int:
        """How often it was used."""
        return content.uses
