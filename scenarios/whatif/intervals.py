"""How sure a difference is: the spread of independent, or nearly independent, estimates of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scenarios.replications import LEVEL

Float = NDArray[np.float64]


def half_width(estimates: Sequence[float] | Float, *, independent: bool = True) -> float | None:
    """Half of the 95% t interval around a figure, from several estimates of it.

    Either ``independent`` estimates, one a replication; or estimates from all of one run but a
    section, one a section (the jackknife over groups: Shao and Tu, The Jackknife and Bootstrap,
    1995, 2.3). Of a mean, and sections of equal size, the latter gives the interval of batch
    means; of a percentile it needs no section to be like the others, as that of a trace with busy
    and quiet hours is not. None for fewer than two estimates, or where one is not finite.
    """
    from scipy.special import stdtrit

    values = np.asarray(estimates, float)
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return None
    squares = float(((values - values.mean()) ** 2).sum())
    variance = squares / (n * (n - 1)) if independent else squares * (n - 1) / n
    return float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(variance)


def paired(
    function: Callable[..., float],
    whole: Sequence[float | None],
    parts: Sequence[Sequence[float | None]],
    *,
    independent: bool,
) -> tuple[float | None, float | None]:
    """A function of some variants' figure, and the half-width of its interval.

    ``whole`` holds each variant's figure, ``parts`` the estimates of it that `half_width` takes.
    All variants share random numbers, so the function is applied to estimates of the same
    replication, or without the same section, and what they have in common cancels.
    """
    known = [value for value in whole if value is not None]
    if len(known) < len(whole):
        return None, None
    value = function(*known)
    if len({len(part) for part in parts}) > 1 or not all(parts):
        return value, None
    if any(estimate is None for part in parts for estimate in part):
        return value, None
    try:
        estimates = [function(*estimates) for estimates in zip(*parts, strict=True)]
    except ZeroDivisionError:
        return value, None
    return value, half_width(estimates, independent=independent)
