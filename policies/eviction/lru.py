"""The least recently used content goes first."""


class LeastRecentlyUsed:
    """vLLM's and SGLang's default: the plain order of `sim.protocols.Eviction`."""
