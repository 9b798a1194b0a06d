"""Grouped-query attention that keeps a bounded part of its context.

Sliding windows (Mistral, Gemma, GPT-OSS; StreamingLLM also keeps 4 sink tokens beside the window,
arXiv 2309.17453). H2O keeps a budget of all tokens, half heavy hitters, half recent (arXiv
2306.14048). Budgets of each prompt: its last queries vote, and each head keeps the tokens they
attend to most (SnapKV, arXiv 2404.14469); all layers keep equally many, or later layers fewer
(PyramidKV, 2406.02069), and all generated tokens are kept. With budgets, prompts are computed in
full; the effect on answers is not modeled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision
from costmodels.models.layers.gqa import OverGqa
from costmodels.models.layers.parts import AttentionWork, ContextTerm, State, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(OverGqa):
    """``gqa`` over the newest ``window`` tokens; nothing older is stored or read."""

    kind: ClassVar[str] = "sliding"

    window: int
    sink_tokens: int = 0
    """First tokens of a sequence, kept and read forever."""

    @property
    def kept_tokens(self) -> int:
        """Most tokens that are stored."""
        return self.window + self.sink_tokens

    def state(self, precision: ModelPrecision) -> State:
        """Return a state that stops growing once the window is full."""
        return State(windows=(Window(self.kept_tokens, self._token_bytes(precision)),))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return attention with contexts and query-key pairs clipped to the window."""
        term = self.gqa.term(float(self._token_bytes(precision)), self.kept_tokens)
        return AttentionWork(decode=(term,), prefill=(term,))

    def _token_bytes(self, precision: ModelPrecision) -> Fraction:
        return self.gqa.state(precision).growing


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicting(OverGqa):
    """``gqa`` that stores and reads at most ``budget_tokens`` a head. Scoring is not counted."""

    kind: ClassVar[str] = "evicting"

    budget_tokens: int

    def state(self, precision: ModelPrecision) -> State:
        """Return the state of a full budget."""
        token_bytes = self.gqa.state(precision).growing
        return State(windows=(Window(self.budget_tokens, token_bytes),))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the work: decodes read what is left, prompts compute over everything."""
        token_bytes = float(self.gqa.state(precision).growing)
        return AttentionWork(
            decode=(self.gqa.term(token_bytes, self.budget_tokens),),
            prefill=(self.gqa.term(token_bytes),),
        )


_SCORE_BYTES = 4
"""Bytes per score: votes are summed and pooled in 32 bits, written by one kernel, read by the
next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBudget(OverGqa):
    """``gqa`` that decodes over what is kept. Each budget is of an equal share of its layers."""

    kind: ClassVar[str] = "prompt_budget"

    budgets: tuple[int, ...]
    """Tokens kept of a prompt, per head."""
    observation_tokens: int = 32
    """Number of queries at a prompt's end that vote."""

    def state(self, precision: ModelPrecision) -> State:
        """Return what is kept once the prompt is computed, as the mean of the layers."""
        token_bytes = self.gqa.state(precision).growing
        shares = Counter(self.budgets)
        windows = (
            Window(budget, token_bytes * Fraction(share, len(self.budgets)), keeps_generated=True)
            for budget, share in shares.items()
        )
        return State(windows=tuple(windows))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the work: decodes read what is left, prompts compute over everything, and their
        end votes.

        Votes are counted with each token that is voted on: its keys are read again, and the scores
        of the observing queries are written and read. The copy of what is kept is not counted.
        """
        token_bytes = float(self.gqa.state(precision).growing)
        whole, share = self.gqa.term(token_bytes), 1 / len(self.budgets)
        kept = ContextTerm(
            prompt_budgets=self.budgets, flops=whole.flops * share, bytes=whole.bytes * share
        )
        scores = self.gqa.heads * self.observation_tokens
        return AttentionWork(
            decode=(kept,),
            prefill=(whole,),
            prefill_token_flops=2.0 * scores * self.gqa.head_dim,
            prefill_token_bytes=token_bytes / 2 + 2.0 * _SCORE_BYTES * scores,
        )


def pyramid_budgets(mean_tokens: int, layers: int, last_share: float = 0.1) -> tuple[int, ...]:
    """Return the budgets of PyramidKV, which fall in equal steps with the mean ``mean_tokens``.

    The last layer keeps ``last_share`` of the mean; the first exceeds the mean by what the last
    lacks.
    """
    if layers == 1:
        return (mean_tokens,)
    last = mean_tokens * last_share
    step = 2 * (mean_tokens - last) / (layers - 1)
    return tuple(max(1, round(2 * mean_tokens - last - step * layer)) for layer in range(layers))
