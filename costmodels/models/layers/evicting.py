"""Grouped-query attention that drops cached tokens it no longer expects to need.

H2O keeps a budget of all tokens, half heavy hitters, half recent (arXiv 2306.14048). Prompts are
computed in full. The effect on answers is not modeled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import AttentionWork, Frame, State, Window
from costmodels.work import Array, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicting:
    """``gqa`` that stores and reads at most ``budget_tokens``."""

    kind: ClassVar[str] = "evicting"

    gqa: Gqa
    budget_tokens: int

    @property
    def kv_heads(self) -> int:
        return self.gqa.kv_heads

    def params(self, hidden: int) -> Params:
        return self.gqa.params(hidden)

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

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return those of ``gqa``; scoring tokens is not counted."""
        return self.gqa.token_operators(frame, calls, tokens)

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        return self.gqa.block_inputs(hidden)

    def row_elements(self, hidden: int) -> int:
        return self.gqa.row_elements(hidden)

    def sharded(self, ranks: int) -> Evicting:
        """Split ``gqa``; budgets are per head."""
        return replace(self, gqa=self.gqa.sharded(ranks))
