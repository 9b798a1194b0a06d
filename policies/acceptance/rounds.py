"""From how often so many drafts survive to what each decode step of a request gives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Float64
from sim.draws import uniforms, uniforms_of
from sim.request import Request

_STREAM = 0x5BEC  # apart from a request's other draws
_ANSWERS = 40  # bits of a request's number: further answers have draws of their own
_TOGETHER, _TOGETHER_STEPS = 32, 256
_MARGIN, _MORE = 1.2, 8  # so that one draw of steps is mostly enough


def survivals(rates: Sequence[float], drafts: int) -> Float64:
    """Chances that at least 1, 2, ... drafts of a chain are accepted; the last rate goes on."""
    found = np.full(drafts, rates[-1] if rates else 0.0)
    found[: len(rates)] = rates[:drafts]
    return found.cumprod()


def tokens_per_step(survival: Float64) -> float:
    """Mean tokens of a step: the target's own, and the drafts accepted."""
    return 1.0 + float(survival.sum())


class Survival(NamedTuple):
    """Chances that so many drafts are accepted, as steps are drawn from them."""

    ascending: Float64
    tokens_per_step: float


def survival_of(survival: Float64) -> Survival:
    """From chances that at least 1, 2, ... drafts are accepted."""
    return Survival(np.ascontiguousarray(survival[::-1]), tokens_per_step(survival))


def drawn_gains(
    survival: Survival, request: Request, sampled_tokens: int, seed: int
) -> NDArray[np.int64]:
    """What each step gives until the answer is complete: 1, and the drafts accepted.

    One draw a step, the request's own: it says how many drafts survive. The last step gives what
    the answer has left.
    """
    left, done = request.output_tokens - sampled_tokens, len(request.rounds)
    ascending, most = survival.ascending, 1 + len(survival.ascending)
    if most == 1:
        return np.ones(left, np.int64)
    count = min(left, int(left / survival.tokens_per_step * _MARGIN) + _MORE)
    while True:
        draws = _draws((seed + 1) * _STREAM, request, done, count)
        gains = most - ascending.searchsorted(draws, "right")
        given = gains.cumsum()
        last = int(given.searchsorted(left))
        if last < count:
            gains = gains[: last + 1]
            gains[last] -= given[last] - left
            return gains
        count = min(left, 2 * count)


def _draws(stream: int, request: Request, done: int, count: int) -> Float64:
    """A request's draws from a step on. Those of neighbors are made together: it is faster."""
    stop = done + count
    if request.sample or stop > _TOGETHER_STEPS:
        answer = request.index + (request.sample << _ANSWERS)
        return uniforms(stream, answer, count, done)
    block, row = divmod(request.index, _TOGETHER)
    return _together(stream, block)[row, done:stop]


@lru_cache(maxsize=64)
def _together(stream: int, block: int) -> Float64:
    return uniforms_of(stream, block * _TOGETHER, _TOGETHER, _TOGETHER_STEPS)
