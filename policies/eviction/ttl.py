"""Time to live: evict what has not been used for some time."""

from sim.clock import to_ns
from sim.errors import ScenarioError


class TimeToLive:
    """Evict content that has not been used for ``seconds``, as prompt caches of APIs do.

    Each use restarts the time. If blocks are needed before, the least recently used content goes
    first. An engine drops expired content at its next scheduler call, and a lookup never finds it.
    """

    def __init__(self, *, seconds: float) -> None:
        if not 1e-9 <= seconds <= 4e9:
            raise ScenarioError(f"seconds is {seconds}; it is from 1e-9 to 4e9")
        self.lifetime_ns = to_ns(seconds)
