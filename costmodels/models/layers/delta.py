"""Linear attention with the delta rule: Gated DeltaNet, with one decay per head (Qwen3-Next,
Qwen3.5), and Kimi delta attention, with a decay per key channel (arXiv 2510.26692)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.parts import (
    CHUNK,
    AttentionWork,
    Frame,
    State,
    recurrent_state,
    recurrent_work,
    split,
)
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
        moved = _chunk_bytes(self.k_heads, self.v_heads, self.k_dim, self.v_dim, decays=1)
        return recurrent_work(
            self.state(precision),
            self.v_heads,
            self.k_dim,
            self.v_dim,
            delta_rule=True,
            chunk_bytes=moved,
        )

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
        heads, dim = self.heads, self.head_dim
        return recurrent_work(
            self.state(precision),
            heads,
            dim,
            dim,
            delta_rule=True,
            chunk_bytes=_chunk_bytes(heads, heads, dim, dim, decays=dim),
        )

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


def _chunk_bytes(k_heads: int, v_heads: int, d_k: int, d_v: int, *, decays: int) -> float:
    """Return the bytes per token that the kernels of flash-linear-attention read and write.

    ``decays`` are those of a head. Elements have 16 bits; decays and the chunk's scores have 32.
    """
    k, v, decay = 2.0 * d_k, 2.0 * d_v, 4.0 * decays  # of one head and token
    scores, states = 4.0 * CHUNK, 2.0 * d_k * d_v / CHUNK
    by_channel = decays > 1  # then keys are written with their decay, and so are q k' of a chunk
    more_k, more_scores = k * by_channel, scores * by_channel
    norms = 4 * k  # of q and k: read and written
    cumulative = 2 * decay
    of_chunk = k + more_k + decay + scores + more_scores
    inverse = 2 * scores
    corrections = 2 * k + more_k + 2 * v + decay + scores  # k, v -> w, u
    passed_on = 2 * k + 2 * v + states  # k, w, u -> values, states
    outputs = 2 * k - more_k + 2 * v + decay + states + more_scores
    each = cumulative + of_chunk + inverse + corrections + passed_on + outputs
    return k_heads * norms + v_heads * each
