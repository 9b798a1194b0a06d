"""Requests that go on from earlier ones: turns of sessions, and continuations.

Sessions wait for answers. Continuations stay open loop: they have given times and lengths, and
their reuse is known only in sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.distributions import (
    NO_TIME,
    ONE,
    Counts,
    Durations,
    Lengths,
    Observed,
    Quantiles,
    check_quantiles,
    sample_quantiles,
    sample_s,
    stream,
)
from workloads.readers.rows import MAX_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resets:
    """Turns that keep only the first part of the context: compaction, edits, another model.

    Raises ScenarioError for values out of range.
    """

    probability: float
    """Probability that a turn after the first is reset. A turn beyond the session's longest prompt
    is reset as well."""
    kept: Quantiles = field(default_factory=lambda: {50: 0.0})
    """Share of the context that stays, by percentile; the shared prefix always stays."""
    dropped: float = 1.0
    """Probability that the rest is gone. Otherwise as many other tokens replace it, so that the
    prompt is as long as without the reset but has to be computed anew."""

    def __post_init__(self) -> None:
        if not (0 <= self.probability <= 1 and 0 <= self.dropped <= 1):
            raise ScenarioError(
                f"resets with probability {self.probability}, dropped {self.dropped}; expected "
                "numbers from 0 to 1"
            )
        check_quantiles(self.kept, "kept share of the context", 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sessions:
    """Requests that follow one another: a turn is sent a think time after the previous answer.

    Raises ScenarioError for values out of range.
    """

    turns: Counts | Lengths = ONE
    think_s: Durations = NO_TIME
    new_tokens: Lengths | Observed | None = None
    """New tokens of each turn after the first, which has the kind's own prompt tokens; None:
    these."""
    history: bool = True
    """Whether a turn's prompt is everything before it and then new tokens; else it is the shared
    prefix and then new tokens."""
    kept_output: float = 1.0
    """Share of an answer that is part of the next prompt. Below 1 (thinking is dropped), the rest
    is computed anew there, since it follows other content."""
    resets: Resets | None = None
    max_prompt_tokens: int = MAX_TOKENS
    """Longest prompt. Longer ones are reset: the first part is kept, the rest dropped."""

    def __post_init__(self) -> None:
        if not 0 <= self.kept_output <= 1:
            raise ScenarioError(f"kept_output is {self.kept_output}; expected 0 to 1")
        if not 1 <= self.max_prompt_tokens <= MAX_TOKENS:
            raise ScenarioError(
                f"max_prompt_tokens is {self.max_prompt_tokens}; expected 1 to {MAX_TOKENS}"
            )
        if not self.history and (self.resets is not None or self.kept_output < 1):
            raise ScenarioError("sessions without history have no resets and keep no output")


def grow_contexts(
    sessions: Sessions,
    turn: Int64,
    new_tokens: Int64,
    output_tokens: Int64,
    prefix_tokens: Int64,
    seed: int,
    kind: str,
) -> tuple[Int64, Int64]:
    """Return the prompt tokens, and how many leading ones come from the turn before: both ``[n]``.

    ``turn`` counts from 0, session after session; ``new_tokens`` are the whole prompt of a first
    turn; ``prefix_tokens`` are the session's shared prefix, which no reset touches.
    """
    resets = sessions.resets or Resets(probability=0.0)
    n = len(turn)
    is_reset = stream(seed, f"resets {kind}").random(n) < resets.probability
    kept_share = sample_quantiles(resets.kept, stream(seed, f"kept {kind}").random(n))
    is_dropped = stream(seed, f"dropped {kind}").random(n) < resets.dropped
    prompt: Int64 = np.minimum(new_tokens, sessions.max_prompt_tokens)
    shared = np.zeros(n, np.int64)
    for rows in _rows_by_turn(turn):
        before = rows - 1
        # Tokens of the turn before that are still cached and that the next prompt begins with.
        same = prompt[before] + (output_tokens[before] if sessions.kept_output == 1 else 0)
        answer = np.rint(sessions.kept_output * output_tokens[before]).astype(np.int64)
        whole = prompt[before] + answer + new_tokens[rows]
        kept = _kept(same, kept_share[rows], prefix_tokens[rows])
        too_long = whole > sessions.max_prompt_tokens
        reset = is_reset[rows] | too_long
        drop = reset & (is_dropped[rows] | too_long)
        whole = np.where(drop, kept + new_tokens[rows], whole)
        prompt[rows] = np.minimum(whole, sessions.max_prompt_tokens)
        shared[rows] = np.minimum(np.where(reset, kept, same), prompt[rows] - 1)
    return prompt, shared


def _kept(same: Int64, share: Float64, prefix_tokens: Int64) -> Int64:
    kept = np.maximum((same * share).astype(np.int64), prefix_tokens)
    return np.minimum(kept, same)


def _rows_by_turn(turn: Int64) -> list[Int64]:
    """Return the rows of the second turns, the third turns, ..."""
    order = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    return np.split(order, ends)[1:-1] if len(turn) else []


_CANDIDATES = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Continuations:
    """Requests that continue an earlier one. Raises ScenarioError for values out of range."""

    probability: float
    """Probability that a request continues an earlier one."""
    shared: Quantiles
    """Share of its prompt that it has in common with that request, by percentile."""
    delay_s: Durations
    """Time since that request arrived."""

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
    """Return which earlier row each row continues (-1: none), and the leading tokens they share.

    The row continued is the nearest to ``delay_s`` before that is long enough, among 256; if none
    is, the nearest is continued, whole. Rows whose delay reaches before the first arrival continue
    none.
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
    # The shared prefix is in common in any case.
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
