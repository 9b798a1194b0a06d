"""Power throttling: lasting matrix work slows the device down, and pauses let it recover.

At its power limit a device lowers its clock some tens of milliseconds into a stretch of matrix
work, which slows everything in those steps, and raises it again afterwards. Decode-only steps draw
less power and keep their pace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PowerThrottle:
    """How one device's power limit acts."""

    slowdown: float
    """A step under lasting compute-bound load takes ``1 + slowdown`` times as long as on a cool
    device."""
    onset_s: float
    """Time constant of slowing down, seconds."""
    recovery_s: float
    """Time constant of recovery, seconds."""
    full_load: float = 1.0
    """Compute-bound share of a step from which the power limit is reached."""

    def lasting_ns(self, gpu_ns: int, compute_ns: int) -> int:
        """Return how much longer a step takes once steps like it have lasted."""
        return round(gpu_ns * self.slowdown * self.load(gpu_ns, compute_ns))

    def load(self, gpu_ns: int, compute_ns: int) -> float:
        """Return the throttle level, 0 to 1, that lasting steps like this one tend to."""
        return min(1.0, compute_ns / gpu_ns / self.full_load)


class Heat:
    """How far one device is throttled: 0 cool, 1 under lasting compute-bound load.

    Steps without compute-bound work leave the level unchanged, so a run of decodes may be stepped
    or jumped over: only the time since the last compute-bound step matters.
    """

    __slots__ = ("_level", "_slowdown", "_throttle", "_until_ns")

    def __init__(self, throttle: PowerThrottle | None, level: float = 0.0) -> None:
        self._throttle = throttle
        self._level = level
        self._until_ns = 0

    def level_at(self, now_ns: int) -> float:
        """Return the level that a step started at ``now_ns`` would meet."""
        if self._throttle is None:
            return 0.0
        idle_s = max(now_ns - self._until_ns, 0) / 1e9
        return self._level * math.exp(-idle_s / self._throttle.recovery_s)

    def stretch_ns(self, start_ns: int, gpu_ns: int, compute_ns: int) -> int:
        """Account for a step with ``compute_ns`` of ``gpu_ns`` compute-bound; return how much
        longer it takes.

        The level tends to the step's compute-bound share of full load. The mean level over the
        step, which stretches it, depends on its length in turn: one refinement is enough.
        """
        throttle = self._throttle
        if throttle is None or not compute_ns:
            return 0
        level = self.level_at(start_ns)
        target = throttle.load(gpu_ns, compute_ns)
        extra_ns = gpu_ns * throttle.slowdown * (level + target) / 2
        for _ in range(2):
            spans = (gpu_ns + extra_ns) / 1e9 / throttle.onset_s
            mean = target + (level - target) * -math.expm1(-spans) / spans
            extra_ns = gpu_ns * throttle.slowdown * mean
        self._level = target + (level - target) * math.exp(-spans)
        stretched_ns = round(extra_ns)
        self._until_ns = start_ns + gpu_ns + stretched_ns
        return stretched_ns
