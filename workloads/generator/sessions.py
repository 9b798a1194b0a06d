"""Conversations and agent runs: contexts that grow from turn to turn, and are sometimes reset."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.counts import ONE, Counts
from workloads.generator.durations import NO_TIME, Durations
from workloads.generator.lengths import Lengths, Observed
from workloads.generator.quantiles import Quantiles, check_quantiles, sample_quantiles
from workloads.generator.streams import stream
from workloads.readers.rows import MAX_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resets:
    """Turns that go on with only the first part of the context: compaction, edits, another model.

    Raises ScenarioError for values it cannot have.
    """

    probability: float
    """Of each turn but the first. A turn beyond the session's longest prompt is reset as well."""
    kept: Quantiles = field(default_factory=lambda: {50: 0.0})
    """Share of the context that stays, by percentile; the shared prefix always does."""
    dropped: float = 1.0
    """The probability that the rest is gone; else as many other tokens stand in its place, so that
    the prompt is as long as without the reset but has to be computed anew."""

    def __post_init__(self) -> None:
        if not (0 <= self.probability <= 1 and 0 <= self.dropped <= 1):
            raise ScenarioError(
                f"resets with probability {self.probability}, dropped {self.dropped}; expected "
                "numbers from 0 to 1"
            )
        check_quantiles(self.kept, "kept share of the context", 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sessions:
    """Requests that follow one another: a turn is sent a think time after the answer before it.

    Raises ScenarioError for values it cannot have.
    """

    turns: Counts | Lengths = ONE
    think_s: Durations = NO_TIME
    new_tokens: Lengths | Observed | None = None
    """Of each turn but the first, which has the kind's own prompt tokens; None: the same."""
    history: bool = True
    """Whether a turn's prompt is all before it and then new tokens; else the shared prefix and
    then new tokens, each turn by itself."""
    kept_output: float = 1.0
    """The share of an answer that is part of the next prompt. Below 1 (thinking is dropped) it has
    to be computed anew there, since what it followed is not the same."""
    resets: Resets | None = None
    max_prompt_tokens: int = MAX_TOKENS
    """Longer prompts are reset: the first part is kept, the rest dropped."""

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
    """Prompt tokens, and how many leading ones are those of the turn before: both ``[n]``.

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
        # What of the turn before is still cached, and what the next prompt begins with.
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
    """Rows of the second turns, the third turns, ..."""
    order = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    return np.split(order, ends)[1:-1] if len(turn) else []
