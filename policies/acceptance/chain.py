"""Acceptance of a chain of drafts, each with a rate by its position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policies.acceptance.rounds import Survival, drawn_gains, survival_of, survivals
from sim.errors import ScenarioError
from sim.request import Request


class Chain:
    """Accept draft ``i`` of a step with probability ``a[i]``, if all before it were accepted.

    The mean number of tokens per step is ``1 + a1 + a1 a2 + ...``; with a single rate,
    ``(1 - a^(g+1)) / (1 - a)`` (Leviathan et al. 2023, arXiv 2211.17192). ``rates_by_class`` holds
    the rates of each request class; the last rate of a class holds for all further positions.
    Raises ScenarioError for rates outside 0 to 1.
    """

    def __init__(self, rates_by_class: Sequence[Sequence[float]], seed: int = 0) -> None:
        for rates in rates_by_class:
            if not rates or not all(0 <= rate <= 1 for rate in rates):
                raise ScenarioError(f"acceptance rates lie from 0 to 1, not {list(rates)}")
        self._rates = [list(rates) for rates in rates_by_class]
        self._survivals: dict[tuple[int, int], Survival] = {}
        self._seed = seed

    def gains(self, request: Request, sampled_tokens: int, drafts: int, /) -> NDArray[np.int64]:
        key = min(request.tenant, len(self._rates) - 1), drafts
        if key not in self._survivals:
            self._survivals[key] = survival_of(survivals(self._rates[key[0]], drafts))
        return drawn_gains(self._survivals[key], request, sampled_tokens, self._seed)
