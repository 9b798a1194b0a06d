"""What one rank of a tensor-parallel group holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from costmodels.layers.parts import Frame
from costmodels.model_spec import LayerGroup, ModelSpec
from sim.errors import ScenarioError


@dataclass(frozen=True, kw_only=True)
class RankShard:
    """The slice of ``model`` on one of ``tensor_parallel_size`` ranks."""

    model: ModelSpec
    tensor_parallel_size: int
    local: ModelSpec
    """The slice as a model of its own: heads, FFN widths and vocabulary rows of one rank.

    Norms, routers, positions and the biases of row-split matrices are whole on every rank.
    """

    @cached_property
    def frame(self) -> Frame:
        """What the kinds of its layers need to know of it."""
        local = self.local
        return Frame(local.hidden_size, local.precision, self.tensor_parallel_size)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights on this rank."""
        return self.local.weight_bytes

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """State bytes that one more token adds, all layers, on this rank."""
        return self.local.kv_bytes_per_token


def shard(model: ModelSpec, tensor_parallel_size: int) -> RankShard:
    """One rank's part of ``model``. Raises `ScenarioError` if it does not divide evenly.

    With more ranks than KV heads each head is replicated; vocabulary rows are rounded up.
    """
    ranks = tensor_parallel_size
    if ranks < 1:
        raise ScenarioError(f"tensor_parallel_size must be at least 1, not {ranks}")
    try:
        local = _local(model, ranks)
    except ScenarioError as problem:
        raise ScenarioError(
            f"tensor_parallel_size {ranks} does not fit {model.name}: {problem}; "
            f"sizes that do: {', '.join(map(str, valid_sizes(model, 2 * ranks)))}"
        ) from None
    return RankShard(model=model, tensor_parallel_size=ranks, local=local)


def valid_sizes(model: ModelSpec, largest: int) -> list[int]:
    """The tensor-parallel sizes up to ``largest`` that divide ``model`` evenly."""
    return [ranks for ranks in range(1, largest + 1) if _divides(model, ranks)]


def _divides(model: ModelSpec, ranks: int) -> bool:
    try:
        _local(model, ranks)
    except ScenarioError:
        return False
    return True


def _local(model: ModelSpec, ranks: int) -> ModelSpec:
    layers = tuple(_local_group(group, ranks) for group in model.layers)
    return replace(model, layers=layers, vocab_size=-(-model.vocab_size // ranks))


def _local_group(group: LayerGroup, ranks: int) -> LayerGroup:
    return replace(
        group,
        mixer=group.mixer and group.mixer.sharded(ranks),
        ffn=group.ffn and group.ffn.sharded(ranks),
    )
