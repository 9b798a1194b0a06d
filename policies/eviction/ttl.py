"""Content that nobody has used for some time is gone; short of blocks, the oldest goes first."""

from sim.clock import to_ns
from sim.errors import ScenarioError


class TimeToLive:
    """Each use begins the time anew, as prompt caches of APIs have it.

    An engine drops what is due at its next scheduler call; a lookup never finds it.
    """

    def __init__(self, *, seconds: float) -> None:
        if not 1e-9 <= seconds <= 4e9:
            raise ScenarioError(f"seconds is {seconds}; it is from 1e-9 to 4e9")
        self.lifetime_ns = to_ns(seconds)
