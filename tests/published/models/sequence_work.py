"""Work of a whole model for one token, by its context: FLOPs by peak, state bytes read.

For ratios between architectures and for checks; the time of a step comes from `step_cost`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodels.formats import BF16_PEAK
from costmodels.models.layers.parts import ContextTerm
from costmodels.models.spec import ModelSpec
from sim.shape import causal_pairs_clipped, clipped


@dataclass(frozen=True, kw_only=True)
class TokenWork:
    """One decoded token, all layers, unsharded."""

    parameter_flops: float
    """2 FLOPs a parameter it passes through; the token table is only looked up in."""
    attention_flops: dict[str, float] = field(default_factory=dict)
    """By the peak it computes at, a field of `GpuSpec`."""
    state_bytes: float = 0.0
    """State read, and written where it is a recurrent one."""


def reach(term: ContextTerm, context: int, generated: int = 0) -> int:
    """Tokens of a context that a term works on; of prompt budgets, summed over them."""
    return context if term.clip is None else clipped(term.clip, context, context - generated)


def decode_token(model: ModelSpec, context: int, generated: int = 0) -> TokenWork:
    """The work of one token after ``context`` others, ``generated`` of them after the prompt."""
    lookups = 0 if model.tie_word_embeddings else model.embedding_params
    flops: dict[str, float] = {}
    state_bytes = 0.0
    for mixer, count in model.mixers:
        work = mixer.attention(model.precision)
        for term in work.decode:
            tokens = count * reach(term, context, generated)
            flops[term.peak] = flops.get(term.peak, 0.0) + term.flops * tokens
            state_bytes += term.bytes * tokens
        if work.decode_seq_flops:
            flops[BF16_PEAK] = flops.get(BF16_PEAK, 0.0) + count * work.decode_seq_flops
        state_bytes += count * work.decode_seq_bytes
    return TokenWork(
        parameter_flops=2.0 * (model.active_params - lookups),
        attention_flops=flops,
        state_bytes=state_bytes,
    )


def prefill_attention_flops(model: ModelSpec, tokens: int, start: int = 0) -> float:
    """FLOPs of attention, or of what stands in its place, for a chunk: all layers and peaks."""
    total = 0.0
    for mixer, count in model.prompt_mixers:
        work = mixer.attention(model.precision)
        terms, prefix_flops = work.prefill, work.prefix_flops
        if work.short is not None and start + tokens <= work.short.longest_tokens:
            terms, prefix_flops = work.short.prefill, work.short.prefix_flops
        for term in terms:
            total += count * term.flops * causal_pairs_clipped(start, tokens, term.cap_tokens)
        total += count * (work.prefill_token_flops * tokens + prefix_flops * start)
    return total
