"""Attention over keys and values that another layer made.

Cross-layer attention (CLA, arXiv 2405.12981) shares them between neighbors, Gemma 4 from some layer
on. The upper half of YOCO (2405.05254) reads one global cache, which `YocoMemory` makes once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import AttentionWork, Frame, State, split_kv_heads
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKv:
    """Queries and output of ``gqa``; it stores nothing and reads the other layer's state."""

    kind: ClassVar[str] = "shared_kv"

    gqa: Gqa
    window: int | None = None
    """Window of a sliding-window layer; None: the whole context."""

    @property
    def kv_heads(self) -> int:
        """KV heads of the layer that it reads."""
        return self.gqa.kv_heads

    def params(self, hidden: int) -> Params:
        """Count the parameters of q and o."""
        gqa = self.gqa
        others = gqa.q_size * gqa.qkv_bias + hidden * gqa.out_bias + gqa.head_dim * gqa.qk_norm
        return Params(attention=2 * hidden * gqa.q_size, others=others)

    def state(self, precision: ModelPrecision) -> State:
        """Return an empty state: it stores nothing."""
        return State()

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the reads of the other layer's state."""
        term = self.gqa.term(float(self.gqa.state(precision).growing), self.window)
        return AttentionWork(decode=(term,), prefill=(term,))

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return those of full attention, without keys and values."""
        hidden, precision, _ = frame
        q_size, weights = self.gqa.q_size, precision.attention
        return [
            linear("q", calls, hidden, q_size, tokens, precision, weights),
            elementwise("rope", calls, 2 * q_size * precision.dtype_bytes, tokens),
            attention_launch(calls, tokens),
            linear("o", calls, q_size, hidden, tokens, precision, weights),
            *converted(calls, q_size, tokens, precision),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count queries and the attention's output."""
        return 2 * self.gqa.q_size

    def sharded(self, ranks: int) -> SharedKv:
        return replace(self, gqa=self.gqa.sharded(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class YocoMemory:
    """The global keys and values of YOCO, made once from the lower half's output."""

    kind: ClassVar[str] = "yoco_memory"

    kv_heads: int
    head_dim: int

    @property
    def kv_size(self) -> int:
        """Elements of all keys of a token; values have the same number."""
        return self.kv_heads * self.head_dim

    def params(self, hidden: int) -> Params:
        """Count the key and the value matrix."""
        return Params(attention=2 * hidden * self.kv_size)

    def state(self, precision: ModelPrecision) -> State:
        """Return 2 kv_heads head_dim elements per token, once for all upper layers."""
        return Gqa(heads=1, kv_heads=self.kv_heads, head_dim=self.head_dim).state(precision)

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return no work: the upper layers read the state."""
        return AttentionWork()

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the projection and the cache write."""
        hidden, precision, _ = frame
        kv_bytes = 4 * self.kv_size * precision.dtype_bytes
        return [
            linear(
                "global_kv", calls, hidden, 2 * self.kv_size, tokens, precision, precision.attention
            ),
            elementwise("global_kv_write", calls, kv_bytes, tokens),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the width of the norm's output."""
        return (hidden,)

    def row_elements(self, hidden: int) -> int:
        """Count the keys and values."""
        return 2 * self.kv_size

    def sharded(self, ranks: int) -> YocoMemory:
        """Split or replicate the heads."""
        return replace(self, kv_heads=split_kv_heads(self.kv_heads, ranks))
