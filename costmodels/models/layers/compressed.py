"""DeepSeek-V4 attention: one shared entry serves as key and value, and old entries are compressed.

Every layer attends to a window of raw tokens. Beside it a layer may keep one entry for every
``stride`` tokens: all of them are read (HCA, stride 128), or the ``topk`` that an indexer chooses
(CSA, stride 4, where an entry is a weighted sum of two strides). With stride 0 there is only the
window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params, load_format
from costmodels.models.layers.parts import AttentionWork, ContextTerm, Frame, State, Window, split
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear

_SCALE_GROUP = 64
"""Elements per scale of the served fp8 entry: 448 fp8 + 64 bf16 + 8 scale bytes = 584 of a
512-wide one."""
_INDEX_SCALE_GROUP = 32
"""Elements per scale of the served 4-bit index entry: 64 + 4 scale bytes."""
_COMPRESSOR_BYTES = 4
"""Bytes per element of half-filled compressors, which hold 32-bit values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedMqa:
    """Multi-query attention over a window and compressed entries."""

    kind: ClassVar[str] = "compressed"

    heads: int
    head_dim: int
    rope: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    stride: int = 0
    overlap: bool = False
    """Whether an entry is made of two strides of tokens."""
    index_heads: int = 0
    index_dim: int = 128
    topk: int = 0
    """Number of entries that the indexer chooses; 0: all are read."""

    @property
    def kv_heads(self) -> int:
        """The shared entry is one head."""
        return 1

    @property
    def q_size(self) -> int:
        """Elements of all queries."""
        return self.heads * self.head_dim

    @property
    def strides(self) -> int:
        """Number of strides of tokens that an entry is made of."""
        return 2 if self.overlap else 1

    def params(self, hidden: int) -> Params:
        """Count low-rank queries, the shared entry, the grouped low-rank output, compressor and
        indexer."""
        q, out = self.q_lora, self.o_groups * self.o_lora
        attention = hidden * (q + self.head_dim) + q * self.q_size
        attention += self.q_size * self.o_lora + out * hidden
        others = q + self.head_dim + self.heads
        if self.stride:
            added, more = self._compressor(hidden, self.head_dim)
            attention, others = attention + added, others + more
        if self.index_heads:
            added, more = self._compressor(hidden, self.index_dim)
            attention += added + q * self.index_heads * self.index_dim + hidden * self.index_heads
            others += more
        return Params(attention=attention, others=others)

    def _compressor(self, hidden: int, width: int) -> tuple[int, int]:
        """Return the parameters of value and gate matrices, and those of position biases and the
        output norm."""
        wide = self.strides * width
        return 2 * hidden * wide, self.stride * wide + width

    def entry_bytes(self, kv: str) -> Fraction:
        """Return the bytes of an entry, or of a raw token in the window."""
        if load_format(kv).bits == 8:
            scales = Fraction(self.head_dim, _SCALE_GROUP)
            return self.head_dim - self.rope + 2 * self.rope + scales
        return self.head_dim * load_format(kv).bits_per_element / 8

    def index_bytes(self, kv: str) -> Fraction:
        """Return the bytes of an index entry: 4 bits per element if the other entries have 8."""
        if not self.index_heads:
            return Fraction(0)
        if load_format(kv).bits == 8:
            return Fraction(self.index_dim, 2) + Fraction(self.index_dim, _INDEX_SCALE_GROUP)
        return self.index_dim * load_format(kv).bits_per_element / 8

    def state(self, precision: ModelPrecision) -> State:
        """Return the window, an entry per stride, and what the compressors have gathered of the
        next one."""
        entry, index = self.entry_bytes(precision.kv), self.index_bytes(precision.kv)
        windows = (Window(self.window, entry),)
        if not self.stride:
            return State(windows=windows)
        width = self.strides * (self.head_dim + (self.index_dim if self.index_heads else 0))
        gathered = self.strides * self.stride * 2 * width * _COMPRESSOR_BYTES
        return State(
            growing=(entry + index) / self.stride,
            windows=windows,
            fixed=gathered,
            entry_tokens=self.stride,
        )

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Count 4 heads head_dim FLOPs per entry read; the indexer scores every entry in 4 bits."""
        entry = float(self.entry_bytes(precision.kv))
        flops = 4.0 * self.q_size
        window = ContextTerm(cap_tokens=self.window, flops=flops, bytes=entry, name="window")
        if not self.stride:
            return AttentionWork(decode=(window,), prefill=(window,))
        chosen = ContextTerm(
            cap_tokens=self.topk * self.stride or None,
            flops=flops / self.stride,
            bytes=entry / self.stride,
        )
        if not self.index_heads:
            return AttentionWork(decode=(window, chosen), prefill=(window, chosen))
        index = ContextTerm(
            flops=2.0 * self.index_heads * self.index_dim / self.stride,
            bytes=float(self.index_bytes(precision.kv)) / self.stride,
            peak="fp4_flop_per_s",
            name="indexer",
        )
        reads = ContextTerm(bytes=entry / self.stride)
        return AttentionWork(
            decode=(window, chosen, index),
            prefill=(window, replace(chosen, bytes=0.0), reads, index),
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return projections, compressors, rotary positions and cache writes."""
        hidden, precision, _ = frame
        elem, weights = precision.dtype_bytes, precision.attention
        group_in, out = self.q_size // self.o_groups, self.o_groups * self.o_lora

        def gemm(name: str, inner: int, outer: int, copies: int = 1) -> Operator:
            return linear(name, calls, inner, outer, tokens, precision, weights, copies=copies)

        moved = 2 * (self.q_size + 3 * self.head_dim) * elem
        operators = [
            gemm("qkv_a", hidden, self.q_lora + self.head_dim),
            elementwise("latent_norms", calls, 2 * (self.q_lora + self.head_dim) * elem, tokens),
            gemm("q_b", self.q_lora, self.q_size),
            elementwise("rope_and_kv_write", calls, moved, tokens),
            attention_launch(calls, tokens),
            gemm("o_a", group_in, self.o_lora, copies=self.o_groups),
            gemm("o_b", out, hidden),
            *converted(calls, self.q_size, tokens, precision),
        ]
        if self.stride:
            wide = 2 * self.strides * self.head_dim
            operators += [
                gemm("compress", hidden, wide),
                elementwise("pool", calls, 2 * wide * elem, tokens),
            ]
        if self.index_heads:
            index = self.index_heads * self.index_dim
            narrow = 2 * self.strides * self.index_dim + self.index_heads
            operators += [
                gemm("index_q", self.q_lora, index),
                gemm("index_k", hidden, narrow),
                elementwise("index_rope_and_write", calls, 2 * (index + narrow) * elem, tokens),
                attention_launch(calls, tokens, launches=2),
            ]
        return operators

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the widths of the norm's output and of the two low-rank inputs."""
        return (hidden, self.q_lora, self.o_groups * self.o_lora)

    def row_elements(self, hidden: int) -> int:
        """Count queries and outputs, the low-rank parts and the index queries."""
        low = self.q_lora + self.o_groups * self.o_lora
        return 2 * self.q_size + low + self.index_heads * self.index_dim

    def sharded(self, ranks: int) -> CompressedMqa:
        """Split heads and output groups; entries, compressor and indexer are whole on every
        rank."""
        return replace(
            self,
            heads=split(self.heads, ranks, f"{self.heads} attention heads"),
            o_groups=split(self.o_groups, ranks, f"{self.o_groups} output groups"),
        )
