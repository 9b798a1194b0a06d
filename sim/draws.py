"""Random numbers that belong to a request, not to the order in which the simulation asks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def uniform(seed: int, request: int, index: int) -> float:
    """Return draw ``index`` of a request, uniform in [0, 1): the same in every run with this seed.

    Mixes the three numbers with the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    state = (((seed + 1) * _GOLDEN + request) * _GOLDEN + index) * _GOLDEN & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return (state ^ state >> 31) / (1 << 64)


def uniforms(seed: int, request: int, count: int, start: int = 0) -> NDArray[np.float64]:
    """Return ``count`` draws of a request from index ``start`` on, equal to `uniform`:
    ``[count]``."""
    found: NDArray[np.float64] = uniforms_of(seed, request, 1, count, start)[0]
    return found


def uniforms_of(
    seed: int, first: int, requests: int, count: int, start: int = 0
) -> NDArray[np.float64]:
    """Return ``count`` draws for each of several requests, the first being ``first``: ``[requests,
    count]``."""
    base = (((seed + 1) * _GOLDEN + first) * _GOLDEN + start) * _GOLDEN & _MASK
    rows = np.arange(requests, dtype=np.uint64)[:, None] * np.uint64(_GOLDEN * _GOLDEN & _MASK)
    rows += np.uint64(base)
    state = rows + np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)
    state ^= state >> _SHIFTS[0]
    state *= _FACTORS[0]
    state ^= state >> _SHIFTS[1]
    state *= _FACTORS[1]
    state ^= state >> _SHIFTS[2]
    found: NDArray[np.float64] = state.astype(np.float64) * 2.0**-64
    return found
