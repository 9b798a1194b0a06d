"""Random numbers that belong to a request, not to the order in which the simulation asks."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, request: int, index: int) -> float:
    """A number in [0, 1) for draw ``index`` of a request: the same in every run of this seed.

    Mixes the three with SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014).
    """
    state = (((seed + 1) * _GOLDEN + request) * _GOLDEN + index) * _GOLDEN & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return (state ^ state >> 31) / (1 << 64)
