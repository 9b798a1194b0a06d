"""What one rank of a tensor-parallel group holds."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.model_spec import ModelSpec
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShard:
    """The slice of a model on one rank, per layer unless named otherwise."""

    model: ModelSpec
    tensor_parallel_size: int
    query_heads: int
    kv_heads: int
    """At least one: with more ranks than KV heads, each head is replicated."""
    intermediate_size: int
    moe_intermediate_size: int
    vocab_rows: int
    """Rows of the token table and of the LM head, rounded up."""

    @property
    def qkv_size(self) -> int:
        """Output features of the fused q, k, v projection."""
        return (self.query_heads + 2 * self.kv_heads) * self.model.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes of one token, all layers, on this rank."""
        return self.model.kv_bytes_per_token // self.model.num_key_value_heads * self.kv_heads

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on this rank. Norms, routers and positions are replicated."""
        model = self.model
        q_size = self.query_heads * model.head_dim
        attention = model.hidden_size * (self.qkv_size + q_size) + self.qkv_size * model.qkv_bias
        attention += model.hidden_size * model.out_bias + 2 * model.head_dim * model.qk_norm
        ffn = model.ffn_matrices * model.hidden_size * self.intermediate_size
        ffn_bias = (model.ffn_matrices - 1) * self.intermediate_size + model.hidden_size
        expert = model.ffn_matrices * model.hidden_size * self.moe_intermediate_size
        params = model.num_layers * (attention + 2 * model.norm_params) + model.norm_params
        params += model.num_dense_layers * (ffn + ffn_bias * model.ffn_bias)
        params += model.num_moe_layers * model.num_experts * (expert + model.hidden_size)
        tables = self.vocab_rows * (1 if model.tie_word_embeddings else 2)
        params += (tables + model.learned_position_rows) * model.hidden_size
        return params * model.dtype_bytes


def shard(model: ModelSpec, tensor_parallel_size: int) -> RankShard:
    """One rank's part of ``model``. Raises `ScenarioError` if it does not divide evenly."""
    ranks = tensor_parallel_size
    if ranks < 1:
        raise ScenarioError(f"tensor_parallel_size must be at least 1, not {ranks}")
    problem = _indivisible(model, ranks)
    if problem:
        fitting = valid_sizes(model, 2 * ranks)
        raise ScenarioError(
            f"tensor_parallel_size {ranks} does not fit {model.name}: {problem}; "
            f"sizes that do: {', '.join(map(str, fitting))}"
        )
    return RankShard(
        model=model,
        tensor_parallel_size=ranks,
        query_heads=model.num_attention_heads // ranks,
        kv_heads=max(1, model.num_key_value_heads // ranks),
        intermediate_size=model.intermediate_size // ranks,
        moe_intermediate_size=model.moe_intermediate_size // ranks,
        vocab_rows=-(-model.vocab_size // ranks),
    )


def valid_sizes(model: ModelSpec, largest: int) -> list[int]:
    """The tensor-parallel sizes up to ``largest`` that divide ``model`` evenly."""
    return [ranks for ranks in range(1, largest + 1) if not _indivisible(model, ranks)]


def _indivisible(model: ModelSpec, ranks: int) -> str:
    """Why ``model`` cannot be split over ``ranks``, or an empty string."""
    kv_heads = model.num_key_value_heads
    if model.num_attention_heads % ranks:
        return f"its {model.num_attention_heads} attention heads are not a multiple of {ranks}"
    if kv_heads % ranks and ranks % kv_heads:
        return f"its {kv_heads} KV heads neither divide into nor replicate over {ranks} ranks"
    if model.intermediate_size % ranks:
        return f"its FFN width {model.intermediate_size} is not a multiple of {ranks}"
    if model.moe_intermediate_size % ranks:
        return f"its expert width {model.moe_intermediate_size} is not a multiple of {ranks}"
    return ""
