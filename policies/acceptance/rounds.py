"""From what a draft at each position comes to, to what each decode step of a request gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.draws import uniforms
from sim.request import Request

_STREAM = 0x5BEC  # apart from a request's other draws
_ANSWERS = 40  # bits of a request's number: further answers have draws of their own


def position_draws(seed: int, request: Request, beyond: int) -> NDArray[np.float64]:
    """A uniform number for each position of a request's answer, ``[output_tokens + beyond]``.

    A position is verified once, in whatever step, so that its draw decides there.
    """
    stream = (seed + 1) * _STREAM
    answer = request.index + (request.sample << _ANSWERS)
    return uniforms(stream, answer, request.output_tokens + beyond)


def chased(
    accepted: Sequence[int], sampled_tokens: int, output_tokens: int, most: int
) -> list[int]:
    """What each step gives: the drafts accepted at its first position, and one token more.

    ``accepted`` ``[output_tokens]``: leading drafts accepted from each position on, of which at
    most ``most`` are drafted. The last step gives what the answer has left.
    """
    gains = []
    position = sampled_tokens
    while position < output_tokens:
        gain = accepted[position] + 1
        if gain > most:
            gain = most + 1
        gains.append(gain)
        position += gain
    if gains:
        gains[-1] -= position - output_tokens
    return gains
