"""Mamba-2: a state-space layer whose state is heads x head_dim x state_size (Nemotron-H)."""

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
    split_kv_heads,
)
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """``heads`` states; each of ``groups`` shares its input and output maps (B, C), as key heads
    are shared."""

    kind: ClassVar[str] = "mamba2"

    heads: int
    head_dim: int
    state_size: int
    groups: int = 1
    conv: int = 4

    @property
    def kv_heads(self) -> int:
        """Every head has a state of its own."""
        return self.heads

    @property
    def size(self) -> int:
        """Number of inner features."""
        return self.heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution over x, B and C."""
        return self.size + 2 * self.groups * self.state_size

    def params(self, hidden: int) -> Params:
        """Count one input matrix (gate, x, B, C, step sizes), one output matrix; convolution,
        decays, the norm."""
        inputs = self.size + self.conv_size + self.heads
        others = self.conv_size * (self.conv + 1) + 3 * self.heads + self.size
        return Params(attention=hidden * (inputs + self.size), others=others)

    def state(self, precision: ModelPrecision) -> State:
        """Return heads head_dim state_size elements, and conv - 1 inputs of the convolution."""
        conv = (self.conv - 1) * self.conv_size
        return recurrent_state(self.size * self.state_size, conv, precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return linear attention's work: nothing depends on the context."""
        state = self.state(precision)
        return recurrent_work(state, self.heads, self.state_size, self.head_dim, delta_rule=False)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the projections, the convolution and the gated norm."""
        hidden, precision, _ = frame
        elem, weights = precision.dtype_bytes, precision.attention
        inputs = self.size + self.conv_size + self.heads
        return [
            linear("ssm_in", calls, hidden, inputs, tokens, precision, weights),
            elementwise("convolutions", calls, 2 * self.conv_size * elem, tokens),
            attention_launch(calls, tokens),
            elementwise("gated_norm", calls, 3 * self.size * elem, tokens),
            linear("ssm_out", calls, self.size, hidden, tokens, precision, weights),
            *converted(calls, self.size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count all inputs of the layer, and the output."""
        return 2 * self.size + self.conv_size + self.heads

    def sharded(self, ranks: int) -> Mamba2:
        """Split heads; groups are split or replicated."""
        return replace(
            self,
            heads=split(self.heads, ranks, f"{self.heads} Mamba heads"),
            groups=split_kv_heads(self.groups, ranks),
        )
