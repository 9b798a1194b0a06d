"""Grouped-query attention that keeps a budget of each prompt, and all generated tokens.

The last queries of a prompt vote: each head keeps the tokens they attend to most (SnapKV, arXiv
2404.14469). All layers keep equally many, or later layers fewer (PyramidKV, 2406.02069). Prompts
are computed in full. The effect on answers is not modeled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision
from costmodels.models.layers.gqa import OverGqa
from costmodels.models.layers.parts import AttentionWork, ContextTerm, State, Window

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
