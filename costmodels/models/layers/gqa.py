"""Full attention with grouped query heads: MHA, GQA and MQA.

Each token stores a key and a value per KV head, and every later token reads them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

from costmodels.formats import ModelPrecision, Params, load_format
from costmodels.models.layers.parts import (
    AttentionWork,
    ContextTerm,
    Frame,
    State,
    Window,
    split,
    split_kv_heads,
)
from costmodels.work import (
    Array,
    Operator,
    all_reduce,
    attention_launch,
    converted,
    elementwise,
    linear,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa:
    """Softmax attention over the whole context."""

    kind: ClassVar[str] = "gqa"

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int = 0
    """Elements of a head's value and output; 0: ``head_dim``."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    qk_norm_all_heads: bool = False
    """Whether the QK-norms are over all heads at once, so that ranks must sum their squares."""
    gated: bool = False
    """Whether its output is gated: the query matrix also makes a gate for each query."""
    sinks: bool = False
    """Whether a learned logit per head takes part in every softmax."""
    k_eq_v: bool = False
    """Whether one matrix makes both keys and values; both are stored."""

    @property
    def q_size(self) -> int:
        """Elements of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def o_size(self) -> int:
        """Elements of the attention's output of a token."""
        return self.heads * (self.v_dim or self.head_dim)

    @property
    def kv_size(self) -> int:
        """Elements of all keys and values of a token, halved."""
        return self.kv_heads * (self.head_dim + (self.v_dim or self.head_dim)) // 2

    @property
    def qkv_size(self) -> int:
        """Output features of the fused q, k, v matrix."""
        q_size = self.q_size * (2 if self.gated else 1)
        return q_size + self.kv_size * (1 if self.k_eq_v else 2)

    def params(self, hidden: int) -> Params:
        """Count q, k, v, o; their biases, the QK-norms and the sinks."""
        others = self.qkv_size * self.qkv_bias + hidden * self.out_bias + self.heads * self.sinks
        if self.qk_norm:
            others += self.q_size + self.kv_size if self.qk_norm_all_heads else 2 * self.head_dim
        return Params(attention=hidden * (self.qkv_size + self.o_size), others=others)

    def state(self, precision: ModelPrecision) -> State:
        """Return a key and a value per KV head, and the newest tokens of a cache that keeps
        these in 16 bits."""
        elements, stored = 2 * self.kv_size, load_format(precision.kv)
        a_token = elements * stored.bits_per_element / 8
        if not stored.residual_tokens:
            return State(growing=a_token)
        more = Fraction(elements * precision.dtype_bytes) - a_token
        return State(growing=a_token, windows=(Window(stored.residual_tokens, more),))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Count 4 heads head_dim FLOPs per query-key pair; keys and values are read once per
        sequence."""
        state = self.state(precision)
        terms = [self.term(float(state.growing))]
        terms += [
            ContextTerm(cap_tokens=window.tokens, bytes=float(window.bytes_per_token))
            for window in state.windows
        ]
        return AttentionWork(decode=tuple(terms), prefill=tuple(terms))

    def term(self, bytes_per_token: float, cap_tokens: int | None = None) -> ContextTerm:
        """Return the attention over a context clipped to ``cap_tokens``; None: over the whole
        context."""
        return ContextTerm(
            cap_tokens=cap_tokens, flops=2.0 * (self.q_size + self.o_size), bytes=bytes_per_token
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return projections, rotary positions and the cache write, the norms of queries and
        keys."""
        hidden, precision, ranks = frame
        elem = precision.dtype_bytes
        q_size, kv_size = self.q_size, self.kv_size
        weights = precision.attention
        moved = (("rotary", 2.0 * (q_size + kv_size) * elem), ("kv_write", 4.0 * kv_size * elem))
        operators = [
            linear("qkv", calls, hidden, self.qkv_size, tokens, precision, weights),
            # Rotary positions are applied in place; then keys and values are copied into their
            # blocks.
            elementwise(
                "rope_and_kv_write", calls, sum(size for _, size in moved), tokens, parts=moved
            ),
            attention_launch(calls, tokens),
            linear("o", calls, self.o_size, hidden, tokens, precision, weights),
            *converted(calls, self.o_size, tokens, precision),
        ]
        if self.gated:
            operators.append(elementwise("output_gate", calls, 3 * q_size * elem, tokens))
        if self.qk_norm:
            operators.append(elementwise("qk_norm", calls, 2 * (q_size + kv_size) * elem, tokens))
        if self.qk_norm_all_heads and ranks > 1:
            # The sums of squares of queries and of keys, in 32 bits.
            operators.append(all_reduce("qk_norm_sum", calls, 8, ranks, tokens))
        return operators

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count q, k, v and the attention's output."""
        return self.qkv_size + self.o_size

    def sharded(self, ranks: int) -> Gqa:
        """Split query heads; KV heads are split or replicated."""
        return replace(
            self,
            heads=split(self.heads, ranks, f"{self.heads} attention heads"),
            kv_heads=split_kv_heads(self.kv_heads, ranks),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverGqa:
    """Base of mixers with the projections and the heads of ``gqa`` but another state."""

    gqa: Gqa

    @property
    def kv_heads(self) -> int:
        return self.gqa.kv_heads

    def params(self, hidden: int) -> Params:
        return self.gqa.params(hidden)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        return self.gqa.token_operators(frame, calls, tokens)

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        return self.gqa.block_inputs(hidden)

    def row_elements(self, hidden: int) -> int:
        return self.gqa.row_elements(hidden)

    def sharded(self, ranks: int) -> Self:
        return replace(self, gqa=self.gqa.sharded(ranks))


def softmax_attention(mixer: object) -> Gqa | None:
    """Return the grouped-query attention of a layer or that it is built over; None without any."""
    if isinstance(mixer, OverGqa):
        return mixer.gqa
    return mixer if isinstance(mixer, Gqa) else None
