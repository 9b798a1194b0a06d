"""Accepted lengths as they were recorded, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.draws import uniform
from sim.errors import ScenarioError
from sim.request import Request

_STREAM = 0x5EB1A


class Replay:
    """Accept as many drafts in each step as were recorded, at most as many as are drafted.

    ``by_request`` holds the recorded steps of single requests; a request that needs more starts
    over. Other requests take steps from ``pool``, one after another from a position that belongs to
    the request. Raises ScenarioError for an empty record and for negative lengths.
    """

    def __init__(
        self,
        pool: Sequence[int] = (),
        by_request: Mapping[int, Sequence[int]] | None = None,
        seed: int = 0,
    ) -> None:
        self._by_request = dict(by_request or {})
        self._pool = list(pool)
        self._seed = (seed + 1) * _STREAM
        recorded = [self._pool, *self._by_request.values()] if pool else self._by_request.values()
        if not recorded or not all(recorded):
            raise ScenarioError("a record of accepted lengths needs at least one step")
        if any(length < 0 for lengths in recorded for length in lengths):
            raise ScenarioError("accepted lengths must not be negative")

    def gains(self, request: Request, sampled_tokens: int, drafts: int, /) -> Sequence[int]:
        lengths = self._by_request.get(request.index, self._pool)
        if not lengths:
            raise ScenarioError(
                f"the record of accepted lengths has no steps of request {request.index}"
            )
        place = len(request.rounds)
        if request.index not in self._by_request:
            place += int(uniform(self._seed, request.index, request.sample) * len(lengths))
        gains, left = list[int](), request.output_tokens - sampled_tokens
        while left > 0:
            gain = min(1 + min(lengths[place % len(lengths)], drafts), left)
            gains.append(gain)
            left -= gain
            place += 1
        return gains
