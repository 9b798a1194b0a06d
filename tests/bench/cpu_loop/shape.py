"""The loop's model, and the steps at which it is timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodels.formats import precision_of
from costmodels.models.hf_config import read_hf_config
from costmodels.models.spec import ModelSpec
from sim.shape import StepShape, causal_pairs

DTYPE = "float32"
GROUPS = ("matrices", "attention", "elementwise", "sampling")
"""The operators of a step, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopModel:
    """A decoder of Llama's architecture, in float32; it has random weights."""

    layers: int = 8
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    inter: int = 1536
    vocab: int = 8192

    @property
    def q_size(self) -> int:
        """Elements of a token's queries."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of a token's keys; as many values."""
        return self.kv_heads * self.head_dim

    def hf_config(self) -> dict[str, Any]:
        """Return the model as a Hugging Face ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inter,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "torch_dtype": DTYPE,
        }

    def spec(self) -> ModelSpec:
        """What fleetcast prices: everything in float32, the KV cache too."""
        spec = read_hf_config(self.hf_config(), name="cpu-loop")
        return replace(spec, precision=precision_of(DTYPE))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """One engine step: decodes of equal contexts, a chunk of a prompt, or both."""

    decodes: int = 0
    context_tokens: int = 0
    """Tokens of each decode before the step."""
    chunk_tokens: int = 0
    prefix_tokens: int = 0
    """What is in the cache of the chunk's sequence."""

    @property
    def kind(self) -> str:
        """decode, prefill, extend (a chunk behind a prefix) or mixed."""
        if self.decodes:
            return "mixed" if self.chunk_tokens else "decode"
        return "extend" if self.prefix_tokens else "prefill"

    @property
    def tokens(self) -> int:
        """Rows of the step's matrix products."""
        return self.decodes + self.chunk_tokens

    @property
    def logits(self) -> int:
        """Sequences that sample; the chunk is its prompt's last."""
        return self.decodes + bool(self.chunk_tokens)

    def shape(self) -> StepShape:
        """The step as a step cost sees it."""
        return StepShape(
            decode_seqs=self.decodes,
            decode_context_tokens=self.decodes * self.context_tokens,
            prefill_seqs=int(bool(self.chunk_tokens)),
            prefill_tokens=self.chunk_tokens,
            prefill_context_tokens=self.prefix_tokens,
            prefill_pairs=causal_pairs(self.prefix_tokens, self.chunk_tokens),
            logits=self.logits,
        )


# Contexts and some batch sizes lie between those that operators are measured at.
_BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
_CONTEXTS = (64, 100, 300, 700, 1500, 2000)
_CHUNKS = ((32, 0), (96, 0), (192, 0), (256, 0), (64, 200), (128, 600), (128, 1500))
_MIXED = ((4, 300, 64, 0), (8, 700, 128, 200), (16, 300, 64, 600))
_MOST_KV_TOKENS = 16384


def all_steps(quick: bool) -> list[LoopStep]:
    """Decodes by batch size and context, chunks by tokens and prefix, and mixed steps."""
    batches, contexts = (_BATCHES[::4], _CONTEXTS[1::2]) if quick else (_BATCHES, _CONTEXTS)
    chunks, mixed = (_CHUNKS[1::3], _MIXED[:1]) if quick else (_CHUNKS, _MIXED)
    decodes = [
        LoopStep(decodes=seqs, context_tokens=context)
        for seqs in batches
        for context in contexts
        if seqs * context <= _MOST_KV_TOKENS
    ]
    return [
        *decodes,
        *(LoopStep(chunk_tokens=new, prefix_tokens=prefix) for new, prefix in chunks),
        *(
            LoopStep(decodes=seqs, context_tokens=context, chunk_tokens=new, prefix_tokens=prefix)
            for seqs, context, new, prefix in mixed
        ),
    ]
