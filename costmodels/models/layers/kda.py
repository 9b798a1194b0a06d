"""Kimi delta attention: a delta-rule state with a decay per key channel (arXiv 2510.26692)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.parts import AttentionWork, Frame, State
from costmodels.models.layers.recurrent import recurrent_state, recurrent_work
from costmodels.models.layers.split import split
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Kda:
    """``heads`` states of ``head_dim`` by ``head_dim``; q, k and v pass short convolutions."""

    kind: ClassVar[str] = "kda"

    heads: int
    head_dim: int
    conv: int = 4
    full_rank_gate: bool = False
    """Whether the output gate is one matrix (Kimi-K3) rather than of rank ``head_dim``; the
    decay always has that rank."""

    @property
    def kv_heads(self) -> int:
        """Every head has a state of its own."""
        return self.heads

    @property
    def size(self) -> int:
        """Elements of all queries; keys and values have the same number each."""
        return self.heads * self.head_dim

    def params(self, hidden: int) -> Params:
        """Count q, k, v, o; the decay and output gates; the delta rule's strength; convolutions."""
        low_rank = self.head_dim * (hidden + self.size)
        gates = low_rank + (hidden * self.size if self.full_rank_gate else low_rank)
        others = 3 * self.size * self.conv + self.size + self.heads + self.head_dim
        return Params(attention=4 * hidden * self.size + gates + hidden * self.heads, others=others)

    def state(self, precision: ModelPrecision) -> State:
        """Return heads d d elements, and conv - 1 inputs of three convolutions."""
        conv = 3 * (self.conv - 1) * self.size
        return recurrent_state(self.size * self.head_dim, conv, precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return linear attention's work: nothing depends on the context."""
        state = self.state(precision)
        return recurrent_work(state, self.heads, self.head_dim, self.head_dim, delta_rule=True)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return projections, convolutions, gates, and the norm of the output."""
        hidden, precision, _ = frame
        size, elem, weights = self.size, precision.dtype_bytes, precision.attention

        def gemm(name: str, inner: int, outer: int) -> Operator:
            return linear(name, calls, inner, outer, tokens, precision, weights)

        low = self.head_dim if self.full_rank_gate else 2 * self.head_dim
        operators = [
            gemm("qkv", hidden, 3 * size),
            gemm("gates_a", hidden, low + self.heads),
            gemm("decay_b", self.head_dim, size),
        ]
        gate_in = hidden if self.full_rank_gate else self.head_dim
        return [
            *operators,
            gemm("gate_b", gate_in, size),
            elementwise("convolutions", calls, 6 * size * elem, tokens),
            elementwise("decay", calls, 2 * size * elem, tokens),
            attention_launch(calls, tokens),
            elementwise("gated_norm", calls, 3 * size * elem, tokens),
            gemm("o", size, hidden),
            *converted(calls, size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the widths of the norm's output and of the low-rank gates."""
        return (hidden, self.head_dim)

    def row_elements(self, hidden: int) -> int:
        """Count q, k, v, decay, gate and output."""
        return 6 * self.size

    def sharded(self, ranks: int) -> Kda:
        """Split heads; the low-rank inputs of the gates are whole on every rank."""
        return replace(self, heads=split(self.heads, ranks, f"{self.heads} KDA heads"))
