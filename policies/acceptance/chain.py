"""A chain of drafts: each is accepted at a rate of its place, if all before it were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.acceptance.rounds import chased, position_draws
from sim.errors import ScenarioError
from sim.request import Request


class Chain:
    """Draft ``i`` of a step is accepted at rate ``a[i]``, independently, after its predecessors.

    Mean tokens a step are ``1 + a1 + a1 a2 + ...``; with one rate ``(1 - a^(g+1)) / (1 - a)``
    (Leviathan et al. 2023, arXiv 2211.17192). Rates are those of the request's class; beyond the
    last one given, it stands for all further places.
    """

    def __init__(self, rates_by_class: Sequence[Sequence[float]], most_drafts: int, seed: int = 0):
        for rates in rates_by_class:
            if not rates or not all(0 <= rate <= 1 for rate in rates):
                raise ScenarioError(f"acceptance rates lie from 0 to 1, not {list(rates)}")
        self._rates = [
            [*rates, *([rates[-1]] * (most_drafts - len(rates)))][:most_drafts]
            for rates in rates_by_class
        ]
        self._most = most_drafts
        self._seed = seed

    def gains(self, request: Request, sampled_tokens: int, drafts: int, /) -> list[int]:
        """Tokens of each further decode step."""
        output_tokens = request.output_tokens
        if not drafts:
            return [1] * (output_tokens - sampled_tokens)
        if request.accepted is None:
            request.accepted = self.accepted(request).tolist()
        return chased(request.accepted, sampled_tokens, output_tokens, drafts)

    def accepted(self, request: Request) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Leading drafts accepted from each position of the answer on: ``[output_tokens]``."""
        rates = self._rates[min(request.tenant, len(self._rates) - 1)]
        draws, positions = position_draws(self._seed, request, self._most), request.output_tokens
        is_accepted = np.ones(positions, bool)
        found = np.zeros(positions, np.int64)
        for place, rate in enumerate(rates):
            is_accepted &= draws[place : place + positions] < rate
            found += is_accepted
        return found
