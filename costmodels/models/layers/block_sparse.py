"""Grouped-query attention over the best blocks of the context (MiniMax-M3, Quest).

Small index keys, or the summaries of blocks, are scored over the whole context; attention reads the
``topk_blocks`` best blocks. Everything stays stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision, Params, load_format
from costmodels.models.layers.gqa import OverGqa
from costmodels.models.layers.parts import AttentionWork, ContextTerm, Frame, State, split_kv_heads
from costmodels.work import Array, Operator, attention_launch, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparse(OverGqa):
    """``gqa`` over ``topk_blocks`` blocks of ``block_tokens``."""

    kind: ClassVar[str] = "block_sparse"

    block_tokens: int
    topk_blocks: int
    index_heads: int = 0
    """Heads of an indexer with a key of ``index_dim`` per token; 0: the minimum and maximum of
    each block's keys are scored, as in Quest (arXiv 2406.10774)."""
    index_dim: int = 0

    def params(self, hidden: int) -> Params:
        """Count those of ``gqa``, and an indexer's queries and key."""
        index = hidden * (self.index_heads + 1) * self.index_dim if self.index_heads else 0
        return self.gqa.params(hidden) + Params(attention=index)

    def state(self, precision: ModelPrecision) -> State:
        """Return the keys and values, and what is scored."""
        return State(growing=self.gqa.state(precision).growing + self._scored_bytes(precision))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the scores over all tokens and the attention over the chosen blocks."""
        token_bytes = float(self.gqa.state(precision).growing)
        chosen = self.gqa.term(token_bytes, self.block_tokens * self.topk_blocks)
        heads, width = self.index_heads, self.index_dim
        flops = 2.0 * heads * width if heads else 4.0 * self.gqa.q_size / self.block_tokens
        scored = ContextTerm(
            flops=flops, bytes=float(self._scored_bytes(precision)), name="indexer"
        )
        reads = ContextTerm(bytes=token_bytes)
        return AttentionWork(
            decode=(chosen, scored), prefill=(replace(chosen, bytes=0.0), reads, scored)
        )

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return those of ``gqa``, and the indexer's."""
        operators = self.gqa.token_operators(frame, calls, tokens)
        if self.index_heads:
            width = (self.index_heads + 1) * self.index_dim
            hidden, precision, _ = frame
            operators.append(
                linear("index", calls, hidden, width, tokens, precision, precision.attention)
            )
        return [*operators, attention_launch(calls, tokens, launches=2)]

    def row_elements(self, hidden: int) -> int:
        """Count those of ``gqa``, and the index queries."""
        return self.gqa.row_elements(hidden) + self.index_heads * self.index_dim

    def sharded(self, ranks: int) -> BlockSparse:
        """Split ``gqa``; index heads are split or replicated as KV heads are."""
        heads = split_kv_heads(self.index_heads, ranks) if self.index_heads else 0
        return replace(self, gqa=self.gqa.sharded(ranks), index_heads=heads)

    def _scored_bytes(self, precision: ModelPrecision) -> Fraction:
        element = load_format(precision.kv).bits_per_element / 8
        if self.index_heads:
            return self.index_dim * element
        return 2 * self.gqa.kv_size * element / self.block_tokens
