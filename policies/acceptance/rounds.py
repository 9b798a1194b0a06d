"""From how often so many drafts survive to what each decode step of a request gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.draws import uniforms
from sim.request import Request

Float = NDArray[np.float64]

_STREAM = 0x5BEC  # apart from a request's other draws
_ANSWERS = 40  # bits of a request's number: further answers have draws of their own
_MARGIN, _MORE = 1.2, 8  # so that one draw of steps is mostly enough


def survivals(rates: Sequence[float], drafts: int) -> Float:
    """Chances that at least 1, 2, ... drafts of a chain are accepted; the last rate goes on."""
    found = np.full(drafts, rates[-1] if rates else 0.0)
    found[: len(rates)] = rates[:drafts]
    return found.cumprod()


def tokens_a_step(survival: Float) -> float:
    """Mean tokens of a step: the target's own, and the drafts accepted."""
    return 1.0 + float(survival.sum())


def drawn_gains(
    survival: Float, request: Request, sampled_tokens: int, seed: int
) -> NDArray[np.int64]:
    """What each step gives until the answer is complete: 1, and the drafts accepted.

    One draw a step, the request's own: it says how many drafts survive. The last step gives what
    the answer has left.
    """
    left, done = request.output_tokens - sampled_tokens, len(request.rounds)
    if not len(survival):
        return np.ones(left, np.int64)
    ascending = survival[::-1]
    count = min(left, int(left / tokens_a_step(survival) * _MARGIN) + _MORE)
    answer = request.index + (request.sample << _ANSWERS)
    while True:
        draws = uniforms((seed + 1) * _STREAM, answer, count, done)
        gains = 1 + len(survival) - np.searchsorted(ascending, draws, side="right")
        given = gains.cumsum()
        last = int(np.searchsorted(given, left))
        if last < count:
            gains = gains[: last + 1]
            gains[last] -= given[last] - left
            return gains
        count = min(left, 2 * count)
