"""Multi-head latent attention: one latent and one rotary key per token serve all heads.

Decoding is absorbed: queries are brought into the latent space, where attention is multi-query over
kv_lora + rope dimensions for scores and kv_lora for values. Prompts expand the latent into keys and
values of every head, cached prefixes included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params, load_format
from costmodels.models.layers.parts import AttentionWork, ContextTerm, Frame, State, split
from costmodels.work import Array, Operator, attention_launch, converted, elementwise, linear

SERVED_FP8 = "fp8_ds_mla"
_SCALE_GROUP, _SCALE_BYTES = 128, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Dimensions as in the config; ``nope`` and ``rope`` are the two parts of a query-key head."""

    kind: ClassVar[str] = "mla"

    heads: int
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    q_lora: int = 0
    """Rank of the query projection; 0: queries come from one matrix."""
    gated: bool = False
    """Whether its output is gated by a projection of the layer's input."""

    @property
    def kv_heads(self) -> int:
        """The latent is one head, whole on every rank."""
        return 1

    @property
    def latent(self) -> int:
        """Elements stored per token."""
        return self.kv_lora + self.rope

    @property
    def q_size(self) -> int:
        """Elements of all queries."""
        return self.heads * (self.nope + self.rope)

    @property
    def out_size(self) -> int:
        """Elements of all heads' outputs."""
        return self.heads * self.v_dim

    def params(self, hidden: int) -> Params:
        """Count down and up projections of queries and latents, their norms, o, the gate."""
        queries = self.q_lora * (hidden + self.q_size) if self.q_lora else hidden * self.q_size
        expanded = self.kv_lora * self.heads * (self.nope + self.v_dim)
        out = self.out_size * hidden * (2 if self.gated else 1)
        return Params(
            attention=queries + hidden * self.latent + expanded + out,
            others=self.q_lora + self.kv_lora,
        )

    def latent_bytes(self, kv: str) -> Fraction:
        """Return the bytes per token; FlashMLA's fp8 form keeps scales, and the rotary key in 16
        bits."""
        if kv == SERVED_FP8:
            scales = Fraction(self.kv_lora * _SCALE_BYTES, _SCALE_GROUP)
            return self.kv_lora + scales + 2 * self.rope
        return self.latent * load_format(kv).bits_per_element / 8

    def state(self, precision: ModelPrecision) -> State:
        """Return one latent per token."""
        return State(growing=self.latent_bytes(precision.kv))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return absorbed attention for decodes, expanded attention for prompts."""
        latent_bytes = float(self.latent_bytes(precision.kv))
        return AttentionWork(
            decode=(self.absorbed(latent_bytes),),
            prefill=(self.expanded(latent_bytes),),
            prefix_flops=self.prefix_flops,
        )

    @property
    def prefix_flops(self) -> float:
        """FLOPs per cached token before a chunk: keys and values of every head, from its latent."""
        return 2.0 * self.heads * self.kv_lora * (self.nope + self.v_dim)

    def expanded(self, latent_bytes: float) -> ContextTerm:
        """Return attention over keys and values of every head."""
        pair = 2.0 * self.heads * (self.nope + self.rope + self.v_dim)
        return ContextTerm(flops=pair, bytes=latent_bytes)

    def absorbed(self, latent_bytes: float, cap_tokens: int | None = None) -> ContextTerm:
        """Return attention in the latent space: scores over all of it, values from its first
        part."""
        flops = 2.0 * self.heads * (self.latent + self.kv_lora)
        return ContextTerm(cap_tokens=cap_tokens, flops=flops, bytes=latent_bytes)

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return projections, norms, rotary positions and the cache write.

        For prompts ``kv_b`` is the expansion of new tokens; for decodes it is the absorption, whose
        two products have equal FLOPs and weights.
        """
        hidden, precision, _ = frame
        elem, weights = precision.dtype_bytes, precision.attention
        expanded = self.heads * (self.nope + self.v_dim)

        def gemm(name: str, inner: int, outer: int) -> Operator:
            return linear(name, calls, inner, outer, tokens, precision, weights)

        if self.q_lora:
            lora_bytes = 2 * (self.q_lora + self.kv_lora) * elem
            operators = [
                gemm("qkv_a", hidden, self.q_lora + self.latent),
                elementwise("latent_norms", calls, lora_bytes, tokens),
                gemm("q_b", self.q_lora, self.q_size),
            ]
        else:
            operators = [
                gemm("q", hidden, self.q_size),
                gemm("kv_a", hidden, self.latent),
                elementwise("latent_norms", calls, 2 * self.kv_lora * elem, tokens),
            ]
        moved = (
            ("rotary", 2.0 * self.heads * self.rope * elem),
            ("kv_write", 4.0 * self.latent * elem),
        )
        operators += [
            gemm("kv_b", self.kv_lora, expanded),
            elementwise(
                "rope_and_kv_write", calls, sum(size for _, size in moved), tokens, parts=moved
            ),
            attention_launch(calls, tokens),
            gemm("o", self.out_size, hidden),
            *converted(calls, self.out_size, tokens, precision),
        ]
        if self.gated:
            operators += [
                gemm("gate", hidden, self.out_size),
                elementwise("output_gate", calls, 3 * self.out_size * elem, tokens),
            ]
        return operators

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the widths of the norm's output and of the low-rank inputs."""
        return (hidden, self.q_lora, self.kv_lora) if self.q_lora else (hidden, self.kv_lora)

    def row_elements(self, hidden: int) -> int:
        """Count queries, keys, values and outputs of a prompt's token."""
        return 2 * self.q_size + 2 * self.out_size

    def sharded(self, ranks: int) -> Mla:
        """Split heads; the latent and the matrices that make it are whole on every rank."""
        return replace(self, heads=split(self.heads, ranks, f"{self.heads} attention heads"))
