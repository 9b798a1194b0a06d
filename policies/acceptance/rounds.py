"""Tokens of each decode step, drawn from the probabilities that drafts survive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Float64
from sim.draws import uniforms, uniforms_of
from sim.request import Request

_STREAM = 0x5BEC  # keeps these draws apart from a request's others
_ANSWERS = 40  # bits of a request's index; the answer's number stands above them
_TOGETHER, _TOGETHER_STEPS = 32, 256
_MARGIN, _MORE = 1.2, 8  # draw more steps than expected, so that one call mostly suffices


def survivals(rates: Sequence[float], drafts: int) -> Float64:
    """Return the probabilities that at least 1, 2, ... ``drafts`` drafts of a chain are accepted.

    The last of ``rates`` holds for all further drafts.
    """
    found = np.full(drafts, rates[-1] if rates else 0.0)
    found[: len(rates)] = rates[:drafts]
    return found.cumprod()


def tokens_per_step(survival: Float64) -> float:
    """Return the mean tokens per step: the target's own and the accepted drafts."""
    return 1.0 + float(survival.sum())


class Survival(NamedTuple):
    """Probabilities that at least n drafts are accepted, in the order that draws are looked up
    in."""

    ascending: Float64
    tokens_per_step: float


def survival_of(survival: Float64) -> Survival:
    """Make a `Survival` from the probabilities that at least 1, 2, ... drafts are accepted."""
    return Survival(np.ascontiguousarray(survival[::-1]), tokens_per_step(survival))


def drawn_gains(
    survival: Survival, request: Request, sampled_tokens: int, seed: int
) -> NDArray[np.int64]:
    """Draw the tokens of each step until the answer is complete: 1 and the accepted drafts.

    Each step has one draw, which belongs to the request and says how many drafts survive. The last
    step gives what the answer has left.
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
    """Return ``count`` draws of a request from step ``done`` on.

    The first steps of neighboring requests are drawn together, because that is faster.
    """
    stop = done + count
    if request.sample or stop > _TOGETHER_STEPS:
        answer = request.index + (request.sample << _ANSWERS)
        return uniforms(stream, answer, count, done)
    block, row = divmod(request.index, _TOGETHER)
    return _together(stream, block)[row, done:stop]


@lru_cache(maxsize=64)
def _together(stream: int, block: int) -> Float64:
    return uniforms_of(stream, block * _TOGETHER, _TOGETHER, _TOGETHER_STEPS)
