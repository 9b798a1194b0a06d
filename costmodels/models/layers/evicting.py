"""Grouped-query attention that drops cached tokens it no longer expects to need.

H2O keeps a budget of all tokens, half heavy hitters, half recent (arXiv 2306.14048). Prompts are
computed in full. The effect on answers is not modeled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costmodels.formats import ModelPrecision
from costmodels.models.layers.gqa import OverGqa
from costmodels.models.layers.parts import AttentionWork, State, Window


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
