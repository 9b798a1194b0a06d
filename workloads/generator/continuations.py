"""Requests that go on from an earlier one, at arrival times and lengths that are given.

For traffic whose times and total lengths are known and whose reuse is known only in sum. Unlike
sessions these stay open loop: nobody waits for an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.durations import Durations, sample_s
from workloads.generator.quantiles import Quantiles, check_quantiles, sample_quantiles
from workloads.generator.streams import stream

_CANDIDATES = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Continuations:
    """Raises ScenarioError for values it cannot have."""

    probability: float
    """That a request continues an earlier one."""
    shared: Quantiles
    """The share of its prompt that it then has in common with it, by percentile."""
    delay_s: Durations
    """How long ago that one arrived."""

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ScenarioError(f"continuations of probability {self.probability}; expected 0 to 1")
        check_quantiles(self.shared, "shared part of the prompt", 0, 1)


def continue_earlier(
    continuations: Continuations,
    arrival_s: Float64,
    prompt_tokens: Int64,
    output_tokens: Int64,
    prefix_tokens: Int64,
    seed: int,
    kind: str,
) -> tuple[Int64, Int64]:
    """Which earlier row each row continues (-1: none) and how many leading tokens they share.

    The row continued is the nearest to ``delay_s`` before that is long enough, among 256; where
    none is, the nearest, whole. Rows whose delay reaches before the first arrival continue none.
    """
    n = len(arrival_s)
    rows = np.flatnonzero(stream(seed, f"continue {kind}").random(n) < continuations.probability)
    delays_s = sample_s(continuations.delay_s, stream(seed, f"delay {kind}").random(n))[rows]
    shares = sample_quantiles(continuations.shared, stream(seed, f"shared {kind}").random(n))[rows]
    nearest = np.searchsorted(arrival_s, arrival_s[rows] - delays_s, side="right") - 1
    is_possible = (nearest >= 0) & (rows > 0)
    rows, shares, nearest = rows[is_possible], shares[is_possible], nearest[is_possible]
    nearest = np.minimum(nearest, rows - 1)
    wanted = (shares * prompt_tokens[rows]).astype(np.int64)
    context = prompt_tokens + output_tokens
    parent_of_rows = _nearest_long_enough(nearest, rows, wanted, context)
    shared_of_rows = np.minimum(wanted, context[parent_of_rows])
    # All have the shared prefix in common already.
    prefix = np.minimum(prefix_tokens[rows], prefix_tokens[parent_of_rows])
    shared_of_rows = np.maximum(shared_of_rows, prefix)
    parent, shared = np.full(n, -1), np.zeros(n, np.int64)
    parent[rows] = parent_of_rows
    shared[rows] = np.minimum(shared_of_rows, prompt_tokens[rows] - 1)
    return parent, shared


def _nearest_long_enough(nearest: Int64, rows: Int64, wanted: Int64, context: Int64) -> Int64:
    chosen = nearest.copy()
    open_ = np.flatnonzero(context[nearest] < wanted)
    for step in range(1, _CANDIDATES):
        if not len(open_):
            break
        offset = (step + 1) // 2 * (-1) ** step
        candidate = nearest[open_] + offset
        is_earlier = (candidate >= 0) & (candidate < rows[open_])
        candidate = np.clip(candidate, 0, len(context) - 1)
        fits = is_earlier & (context[candidate] >= wanted[open_])
        chosen[open_[fits]] = candidate[fits]
        open_ = open_[~fits]
    return chosen
