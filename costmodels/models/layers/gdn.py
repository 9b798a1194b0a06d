"""Gated DeltaNet: a delta-rule state with one decay per head (Qwen3-Next, Qwen3.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.parts import AttentionWork, Frame, State
from costmodels.models.layers.recurrent import recurrent_state, recurrent_work
from costmodels.models.layers.split import split
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Gdn:
    """``v_heads`` states of ``k_dim`` by ``v_dim``; key heads are shared among value heads."""

    kind: ClassVar[str] = "gdn"

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv: int = 4

    @property
    def kv_heads(self) -> int:
        """Every value head has a state of its own."""
        return self.v_heads

    @property
    def k_size(self) -> int:
        """Elements of all keys; queries have the same number."""
        return self.k_heads * self.k_dim

    @property
    def v_size(self) -> int:
        """Elements of all values."""
        return self.v_heads * self.v_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution over q, k and v."""
        return 2 * self.k_size + self.v_size

    def params(self, hidden: int) -> Params:
        """Count q, k, v, output gate, o; decay and strength per head; the convolution."""
        inputs = self.conv_size + self.v_size + 2 * self.v_heads
        others = self.conv_size * self.conv + 2 * self.v_heads + self.v_dim
        return Params(attention=hidden * (inputs + self.v_size), others=others)

    def state(self, precision: ModelPrecision) -> State:
        """Return v_heads d_k d_v elements, and conv - 1 inputs of the convolution."""
        conv = (self.conv - 1) * self.conv_size
        return recurrent_state(self.v_size * self.k_dim, conv, precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return linear attention's work: nothing depends on the context."""
        state = self.state(precision)
        return recurrent_work(state, self.v_heads, self.k_dim, self.v_dim, delta_rule=True)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the projections, the convolution and the gated norm."""
        hidden, precision, _ = frame
        elem, weights = precision.dtype_bytes, precision.attention
        inputs = self.conv_size + self.v_size
        return [
            linear("qkvz", calls, hidden, inputs, tokens, precision, weights),
            linear("decay", calls, hidden, 2 * self.v_heads, tokens, precision, weights),
            elementwise("convolutions", calls, 2 * self.conv_size * elem, tokens),
            attention_launch(calls, tokens),
            elementwise("gated_norm", calls, 3 * self.v_size * elem, tokens),
            linear("o", calls, self.v_size, hidden, tokens, precision, weights),
            *converted(calls, self.v_size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count q, k, v, gate and output."""
        return self.conv_size + 2 * self.v_size

    def sharded(self, ranks: int) -> Gdn:
        """Split the heads over the ranks."""
        return replace(
            self,
            k_heads=split(self.k_heads, ranks, f"{self.k_heads} linear key heads"),
            v_heads=split(self.v_heads, ranks, f"{self.v_heads} linear value heads"),
        )
