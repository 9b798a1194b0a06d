"""Lightning attention: a state with a fixed decay per head, no convolution (MiniMax-M1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.parts import (
    AttentionWork,
    Frame,
    State,
    recurrent_state,
    recurrent_work,
    split,
)
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning:
    """``heads`` states of ``head_dim`` by ``head_dim``."""

    kind: ClassVar[str] = "lightning"

    heads: int
    head_dim: int

    @property
    def kv_heads(self) -> int:
        """Every head has a state of its own."""
        return self.heads

    @property
    def size(self) -> int:
        """Elements of all queries; keys and values have the same number each."""
        return self.heads * self.head_dim

    def params(self, hidden: int) -> Params:
        """Count q, k, v, output gate, o; the norm of the output."""
        return Params(attention=5 * hidden * self.size, others=self.size)

    def state(self, precision: ModelPrecision) -> State:
        """Return a state of heads d d elements."""
        return recurrent_state(self.size * self.head_dim, 0, precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return linear attention's work: nothing depends on the context."""
        state = self.state(precision)
        return recurrent_work(state, self.heads, self.head_dim, self.head_dim, delta_rule=False)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the projections and the gated norm."""
        hidden, precision, _ = frame
        size, elem, weights = self.size, precision.dtype_bytes, precision.attention
        return [
            linear("qkv", calls, hidden, 3 * size, tokens, precision, weights),
            linear("gate", calls, hidden, size, tokens, precision, weights),
            elementwise("qkv_activation", calls, 6 * size * elem, tokens),
            attention_launch(calls, tokens),
            elementwise("gated_norm", calls, 3 * size * elem, tokens),
            linear("o", calls, size, hidden, tokens, precision, weights),
            *converted(calls, size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count q, k, v, gate and output."""
        return 5 * self.size

    def sharded(self, ranks: int) -> Lightning:
        """Split the heads over the ranks."""
        return replace(self, heads=split(self.heads, ranks, f"{self.heads} linear heads"))
