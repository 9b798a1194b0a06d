"""DeepSeek sparse attention: a small indexer scores the whole context, attention reads the best
tokens.

The indexer keeps one key per token and scores it for ``index_heads`` small heads in fp8; attention
is latent attention over the ``topk`` tokens with the highest scores. If no prompt in a step is
longer than that, nothing needs choosing: prompts are computed as in dense latent attention, keys
and values of every head expanded, which takes fewer FLOPs per pair (vLLM pull request 47327).
GLM-5.2 shares one indexer among several layers: the others have neither its weights nor its keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params, load_format
from costmodels.models.layers.mla import SERVED_FP8, Mla
from costmodels.models.layers.parts import AttentionWork, ContextTerm, Frame, ShortChunks, State
from costmodels.work import Array, Operator, attention_launch, elementwise, linear

# In an 8-bit cache, an index key carries one fp32 scale.
_KEY_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Dsa:
    """``mla`` over the best ``topk`` tokens; without ``index_heads`` it uses another layer's
    choice."""

    kind: ClassVar[str] = "dsa"

    mla: Mla
    topk: int
    index_heads: int = 0
    index_dim: int = 128
    query_heads: int = 0
    """Heads that the sparse kernel computes, the rank's filled up; 0: as many as it has."""
    computes_all: bool = False
    """Whether the sparse kernel computes ``topk`` tokens for every query, however short its
    context is."""
    dense_prompts: bool = True
    """Whether prompts of at most ``topk`` tokens are computed as dense attention."""

    @property
    def kv_heads(self) -> int:
        return self.mla.kv_heads

    def params(self, hidden: int) -> Params:
        """Count those of latent attention, index queries, the key with its LayerNorm, and head
        weights."""
        found = self.mla.params(hidden)
        if not self.index_heads:
            return found
        queries = (self.mla.q_lora or hidden) * self.index_heads * self.index_dim
        index = queries + hidden * (self.index_dim + self.index_heads)
        return found + Params(attention=index, others=2 * self.index_dim)

    def state(self, precision: ModelPrecision) -> State:
        """Return a latent and an index key per token: nothing is dropped."""
        return State(growing=self._latent_bytes(precision) + self._key_bytes(precision))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the indexer over all tokens, and attention in the latent space over the best
        ones."""
        latent_bytes = float(self._latent_bytes(precision))
        sparse = self.mla.absorbed(latent_bytes, self.topk)
        if self.query_heads:
            filled = self.query_heads / self.mla.heads
            sparse = replace(sparse, flops=sparse.flops * filled)
        of_all = self.topk * sparse.flops if self.computes_all else 0.0
        if self.computes_all:
            sparse = replace(sparse, flops=0.0)
        index = ContextTerm(
            flops=2.0 * self.index_heads * self.index_dim,
            bytes=float(self._key_bytes(precision)),
            peak="fp8_flop_per_s",
            name="indexer",
        )
        indexer = (index,) if self.index_heads else ()
        # The queries of a chunk choose different tokens: together they read the whole prefix.
        reads = ContextTerm(bytes=latent_bytes)
        dense = self.mla.expanded(latent_bytes)
        short = ShortChunks(
            longest_tokens=self.topk, prefill=(dense,), prefix_flops=self.mla.prefix_flops
        )
        return AttentionWork(
            decode=(sparse, *indexer),
            decode_seq_flops=of_all,
            prefill=(replace(sparse, bytes=0.0), reads, *indexer),
            prefill_token_flops=of_all,
            short=short if self.dense_prompts else None,
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return those of latent attention, and the indexer's projections and kernels."""
        operators = self.mla.token_operators(frame, calls, tokens)
        if not self.index_heads:
            return operators
        hidden, precision, _ = frame
        weights, index = precision.attention, self.index_heads * self.index_dim
        inner = self.mla.q_lora or hidden
        narrow = self.index_dim + self.index_heads
        moved = (2 * index + 3 * self.index_dim) * precision.dtype_bytes
        return [
            *operators,
            linear("index_q", calls, inner, index, tokens, precision, weights),
            linear("index_k", calls, hidden, narrow, tokens, precision, weights),
            elementwise("index_rope_and_write", calls, moved, tokens),
            # The first kernel scores, the second chooses the best.
            attention_launch(calls, tokens, launches=2),
        ]

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        return self.mla.block_inputs(hidden)

    def row_elements(self, hidden: int) -> int:
        """Count those of latent attention, and the index queries."""
        return self.mla.row_elements(hidden) + self.index_heads * self.index_dim

    def sharded(self, ranks: int) -> Dsa:
        """Split attention heads; the indexer is whole on every rank."""
        return replace(self, mla=self.mla.sharded(ranks))

    def _latent_bytes(self, precision: ModelPrecision) -> Fraction:
        # The sparse kernels read 8-bit latents only in FlashMLA's form.
        return self.mla.latent_bytes(SERVED_FP8 if precision.kv == "fp8" else precision.kv)

    def _key_bytes(self, precision: ModelPrecision) -> Fraction:
        if not self.index_heads:
            return Fraction(0)
        if precision.kv in ("fp8", SERVED_FP8):
            return Fraction(self.index_dim + _KEY_SCALE_BYTES)
        return self.index_dim * load_format(precision.kv).bits_per_element / 8
