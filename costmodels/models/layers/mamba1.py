"""Mamba: a state-space layer with a small state for each of its inner features (Jamba)."""

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
    split_width,
)
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """``size`` features, each with ``state_size`` states; step sizes are made from ``rank``
    features."""

    kind: ClassVar[str] = "mamba1"

    size: int
    state_size: int
    rank: int
    conv: int = 4

    @property
    def kv_heads(self) -> int:
        """Every feature has states of its own."""
        return self.size

    @property
    def maps(self) -> int:
        """Features from which step sizes, input maps (B) and output maps (C) are made."""
        return self.rank + 2 * self.state_size

    def params(self, hidden: int) -> Params:
        """Count input and output matrices, those of step sizes and maps; convolution, decays."""
        matrices = 3 * hidden * self.size + self.size * (self.maps + self.rank)
        others = self.size * (self.conv + 1 + self.state_size + 2) + self.maps
        return Params(attention=matrices, others=others)

    def state(self, precision: ModelPrecision) -> State:
        """Return size state_size elements, and conv - 1 inputs of the convolution."""
        return recurrent_state(self.size * self.state_size, (self.conv - 1) * self.size, precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return linear attention's work: nothing depends on the context."""
        state = self.state(precision)
        return recurrent_work(state, self.size, self.state_size, 1, delta_rule=False)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the projections, the convolution and the gate."""
        hidden, precision, _ = frame
        elem, weights = precision.dtype_bytes, precision.attention
        return [
            linear("ssm_in", calls, hidden, 2 * self.size, tokens, precision, weights),
            elementwise("convolutions", calls, 2 * self.size * elem, tokens),
            linear("ssm_maps", calls, self.size, self.maps, tokens, precision, weights),
            linear("ssm_steps", calls, self.rank, self.size, tokens, precision, weights),
            attention_launch(calls, tokens),
            elementwise("gate", calls, 3 * self.size * elem, tokens),
            linear("ssm_out", calls, self.size, hidden, tokens, precision, weights),
            *converted(calls, self.size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count both halves of the input, step sizes, maps and the output."""
        return 4 * self.size + self.maps

    def sharded(self, ranks: int) -> Mamba1:
        """Split the features over the ranks."""
        return replace(self, size=split_width(self.size, ranks, "Mamba width"))
