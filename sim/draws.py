"""Random numbers that belong to a request, not to the order in which the simulation asks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


def uniforms(seed: int, request: int, count: int) -> NDArray[np.float64]:
    """`uniform` for draws 0 to ``count`` - 1 of a request, bit for bit: float64 ``[count]``."""
    base = ((seed + 1) * _GOLDEN + request) * _GOLDEN & _MASK
    golden, shift = np.uint64(_GOLDEN), np.uint64(30)
    with np.errstate(over="ignore"):
        state = (np.uint64(base) + np.arange(count, dtype=np.uint64)) * golden
        state = (state ^ state >> shift) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.float64] = (state ^ state >> np.uint64(31)) / 2.0**64
    return found
