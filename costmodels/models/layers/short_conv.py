"""A gated short convolution in the place of attention (LFM2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.parts import (
    AttentionWork,
    Frame,
    State,
    recurrent_state,
    split_width,
)
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """``size`` channels, gated before and after a convolution over ``conv`` tokens."""

    kind: ClassVar[str] = "short_conv"

    size: int
    conv: int = 3

    @property
    def kv_heads(self) -> int:
        """Every channel has inputs of its own."""
        return self.size

    def params(self, hidden: int) -> Params:
        """Count the input matrix (two gates and x), the output matrix; the convolution."""
        return Params(attention=4 * hidden * self.size, others=self.size * self.conv)

    def state(self, precision: ModelPrecision) -> State:
        """Return the newest conv - 1 inputs."""
        return recurrent_state(0, (self.conv - 1) * self.size, precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the products of the convolution, and its inputs read and written."""
        state, flops = self.state(precision), 2.0 * self.conv * self.size
        return AttentionWork(
            decode_seq_flops=flops,
            decode_seq_bytes=2.0 * state.fixed,
            prefill_seq_bytes=2.0 * state.fixed,
            prefill_token_flops=flops,
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the projections and the gates."""
        hidden, precision, _ = frame
        elem, weights = precision.dtype_bytes, precision.attention
        return [
            linear("conv_in", calls, hidden, 3 * self.size, tokens, precision, weights),
            elementwise("conv_gates", calls, 6 * self.size * elem, tokens, launches=2),
            attention_launch(calls, tokens),
            linear("conv_out", calls, self.size, hidden, tokens, precision, weights),
            *converted(calls, self.size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count both gates, the input and the output."""
        return 4 * self.size

    def sharded(self, ranks: int) -> ShortConv:
        """Split the channels over the ranks."""
        return replace(self, size=split_width(self.size, ranks, "convolution"))
