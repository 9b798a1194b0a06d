"""Least recently used: evict what was unused for longest."""


class LeastRecentlyUsed:
    """Evict in order of last use, the default of `sim.protocols.Eviction`, vLLM and SGLang."""
