"""The shape of a decoder with full MHA/GQA attention and a dense or mixture-of-experts FFN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

DTYPE_BYTES = {"bfloat16": 2, "float16": 2}
_STORED_BYTES = DTYPE_BYTES | {"fp8": 1, "fp8_block": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One checkpoint's architecture, in the words of its config file.

    Counts are per layer or per model as named; nothing here depends on the hardware.
    `read_hf_config` and `load_model` build it and check it.
    """

    name: str
    model_type: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    """FFN width of a dense layer; 0 if every layer is a mixture of experts."""
    vocab_size: int
    max_position_embeddings: int
    ffn: Literal["gated", "plain"] = "gated"
    """gated: gate, up and down matrices (SwiGLU); plain: two matrices (OPT)."""
    norm: Literal["rms", "layer"] = "rms"
    """layer: LayerNorm, which has a bias as well as a weight."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    qk_norm_all_heads: bool = False
    """The QK-norms are over all heads at once: ranks must sum their squares."""
    learned_position_rows: int = 0
    """Rows of a learned position table; 0 for rotary positions."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_moe_layers: int = 0
    dtype: str = "bfloat16"
    linear_dtype: str = "bfloat16"
    """Of the layers' matrices and, where it is fp8, of what they multiply; embeddings, norms,
    routers and the LM head keep ``dtype``. fp8_block: fp8 with a scale a block of 128 by 128, whose
    scales (a part in 4,096 of the bytes) are not counted."""
    kv_cache_dtype: str = "bfloat16"
    confidence: str = ""
    source: str = ""

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight or activation element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def is_fp8(self) -> bool:
        """Whether the layers' matrices are multiplied in fp8."""
        return self.linear_dtype in ("fp8", "fp8_block")

    @property
    def linear_bytes(self) -> int:
        """Bytes of one element of a layer's matrix."""
        return _STORED_BYTES[self.linear_dtype]

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense FFN."""
        return self.num_layers - self.num_moe_layers

    @property
    def ffn_matrices(self) -> int:
        """Weight matrices of one FFN (or of one expert)."""
        return 3 if self.ffn == "gated" else 2

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention: q, k, v, o, their biases and the QK-norms."""
        q_size = self.num_attention_heads * self.head_dim
        qkv_size = q_size + 2 * self.num_key_value_heads * self.head_dim
        params = self.hidden_size * (qkv_size + q_size)
        params += qkv_size * self.qkv_bias + self.hidden_size * self.out_bias
        kv_size = self.num_key_value_heads * self.head_dim
        normed = q_size + kv_size if self.qk_norm_all_heads else 2 * self.head_dim
        return params + normed * self.qk_norm

    @property
    def dense_ffn_params(self) -> int:
        """Parameters of one dense FFN."""
        weights = self.ffn_matrices * self.hidden_size * self.intermediate_size
        biases = (self.ffn_matrices - 1) * self.intermediate_size + self.hidden_size
        return weights + biases * self.ffn_bias

    @property
    def expert_params(self) -> int:
        """Parameters of one expert."""
        return self.ffn_matrices * self.hidden_size * self.moe_intermediate_size

    @property
    def norm_params(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden_size * (2 if self.norm == "layer" else 1)

    @property
    def embedding_params(self) -> int:
        """Parameters of the token table (the LM head, if not tied, has as many again)."""
        return self.vocab_size * self.hidden_size

    def _params(self, experts_counted: int) -> int:
        moe_ffn = self.hidden_size * self.num_experts + experts_counted * self.expert_params
        layers = self.num_layers * (self.attention_params + 2 * self.norm_params)
        layers += self.num_dense_layers * self.dense_ffn_params + self.num_moe_layers * moe_ffn
        tables = self.embedding_params * (1 if self.tie_word_embeddings else 2)
        tables += self.learned_position_rows * self.hidden_size
        return layers + tables + self.norm_params

    @property
    def total_params(self) -> int:
        """All parameters, embeddings and LM head included."""
        return self._params(self.num_experts)

    @property
    def active_params(self) -> int:
        """Parameters one token passes through, embeddings and LM head included."""
        return self._params(self.num_experts_per_tok)

    @property
    def linear_params(self) -> int:
        """Parameters of the layers' matrices: q, k, v, o, FFNs and experts."""
        q_size = self.num_attention_heads * self.head_dim
        kv_size = self.num_key_value_heads * self.head_dim
        attention = self.hidden_size * 2 * (q_size + kv_size)
        dense = self.ffn_matrices * self.hidden_size * self.intermediate_size
        experts = self.num_experts * self.expert_params
        return (
            self.num_layers * attention
            + self.num_dense_layers * dense
            + self.num_moe_layers * experts
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        others = self.total_params - self.linear_params
        return others * self.dtype_bytes + self.linear_params * self.linear_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes one token adds to the KV cache, all layers, unsharded: 2 L kv_heads head_dim b."""
        elements = 2 * self.num_layers * self.num_key_value_heads * self.head_dim
        return elements * _STORED_BYTES[self.kv_cache_dtype]


def quantised(model: ModelSpec, *, linear: str | None = None, kv_cache: str = "auto") -> ModelSpec:
    """The model with its layers' matrices, and its KV cache, stored in fewer bits.

    ``linear``: fp8, or None to leave them; ``kv_cache``: fp8, or auto to leave it.
    """
    if linear is not None:
        model = replace(model, linear_dtype=linear)
    if kv_cache != "auto":
        model = replace(model, kv_cache_dtype=kv_cache)
    return model
