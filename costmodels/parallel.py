"""What one rank of a tensor-parallel group holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodels.model_spec import ModelSpec
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShard:
    """The slice of ``model`` on one of ``tensor_parallel_size`` ranks."""

    model: ModelSpec
    tensor_parallel_size: int
    local: ModelSpec
    """The slice as a model of its own: heads, FFN widths and vocabulary rows of one rank.

    Norms, routers, positions and the biases of row-split matrices are whole on every rank.
    """

    @property
    def qkv_size(self) -> int:
        """Output features of the fused q, k, v projection."""
        local = self.local
        return (local.num_attention_heads + 2 * local.num_key_value_heads) * local.head_dim

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on this rank."""
        return self.local.weight_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes of one token, all layers, on this rank."""
        return self.local.kv_bytes_per_token


def shard(model: ModelSpec, tensor_parallel_size: int) -> RankShard:
    """One rank's part of ``model``. Raises `ScenarioError` if it does not divide evenly.

    With more ranks than KV heads each head is replicated; vocabulary rows are rounded up.
    """
    ranks = tensor_parallel_size
    if ranks < 1:
        raise ScenarioError(f"tensor_parallel_size must be at least 1, not {ranks}")
    problem = _indivisible(model, ranks)
    if problem:
        raise ScenarioError(
            f"tensor_parallel_size {ranks} does not fit {model.name}: {problem}; "
            f"sizes that do: {', '.join(map(str, valid_sizes(model, 2 * ranks)))}"
        )
    local = replace(
        model,
        num_attention_heads=model.num_attention_heads // ranks,
        num_key_value_heads=max(1, model.num_key_value_heads // ranks),
        intermediate_size=model.intermediate_size // ranks,
        moe_intermediate_size=model.moe_intermediate_size // ranks,
        vocab_size=-(-model.vocab_size // ranks),
    )
    return RankShard(model=model, tensor_parallel_size=ranks, local=local)


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
