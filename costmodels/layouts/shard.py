"""The part of a model that one rank of a replica holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from costmodels.formats import Params
from costmodels.layouts.layout import Layout, check_layout
from costmodels.models.expert_load import place
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Frame, State, split_width
from costmodels.models.spec import LayerGroup, ModelSpec
from sim.errors import ScenarioError

_ALONE = Layout()
LARGEST_NODE = 72
"""GPUs of the largest domain on the market (NVL72): no more ranks are tried."""


@dataclass(frozen=True, kw_only=True)
class RankShard:
    """The slice of ``model`` on one rank of ``layout``."""

    model: ModelSpec
    layout: Layout
    local: ModelSpec
    """The slice of all layers as a model of its own: heads, FFN widths and vocabulary rows.

    Norms, routers, positions and the biases of row-split matrices are whole on every rank. A rank
    of a pipeline has only some of the layers: see `stage_share`.
    """

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks that share each layer."""
        return self.layout.tensor_parallel_size

    @property
    def stage_layers(self) -> int:
        """Layers of the largest pipeline stage."""
        return -(-self.model.num_layers // self.layout.pipeline_parallel_size)

    @property
    def stage_share(self) -> Fraction:
        """The largest stage's share of the layers, with layers of all kinds taken as spread evenly.

        It is 1 without a pipeline.
        """
        return Fraction(self.stage_layers, self.model.num_layers)

    @cached_property
    def frame(self) -> Frame:
        """The parts of the shard that its kinds of layers depend on."""
        local = self.local
        return Frame(local.hidden_size, local.precision, self.tensor_parallel_size)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights on this rank; in a pipeline, on the rank with the most."""
        local = self.local
        if self.layout.pipeline_parallel_size == 1:
            return local.weight_bytes
        # The last stage has the LM head, the first the token table; a stage counts one of them, or
        # the tied one.
        ends_bytes = self._ends_bytes
        one_end = ends_bytes if local.tie_word_embeddings else ends_bytes // 2
        return self.layer_weight_bytes + one_end

    @cached_property
    def layer_weight_bytes(self) -> int:
        """Bytes of this rank's weights without the token table and the LM head."""
        towers_bytes = self.tower_bytes
        layers_bytes = self.local.weight_bytes - self._ends_bytes - towers_bytes
        return math.ceil(layers_bytes * self.stage_share) + towers_bytes

    @property
    def tower_bytes(self) -> int:
        """Bytes of the vision and audio towers on this rank; a pipeline's first stage has them."""
        towers = sum(tower.params for tower in self.local.towers)
        return self.local.precision.weight_bytes(Params(towers=towers))

    @property
    def _ends_bytes(self) -> int:
        end = Params(embedding=self.local.params().embedding)
        return self.local.precision.weight_bytes(end)

    @property
    def states(self) -> tuple[tuple[State, Fraction], ...]:
        """The state of each kind of mixer, and its number of layers on this rank.

        If ranks split contexts, each layer's state is spread over them: a rank counts a share of a
        layer.
        """
        share = self.stage_share / self.layout.context_ranks
        return tuple((state, count * share) for state, count in self.local.states)

    def state_bytes(self, context: int, generated: int = 0) -> int:
        """Return the bytes of a sequence on this rank, rounded up; see `ModelSpec.state_bytes`."""
        states = (state.at(context, generated) * count for state, count in self.states)
        return math.ceil(sum(states, Fraction(0)))

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """State bytes that one more token adds, all layers of this rank, on average."""
        growing = self.local.growing_state_bytes_per_token
        return math.ceil(growing * self.stage_share / self.layout.context_ranks)


def shard(model: ModelSpec, layout: Layout | int) -> RankShard:
    """Return one rank's part of ``model``. Raises `ScenarioError` if it does not divide evenly.

    A number as layout means tensor parallelism only. With more ranks than KV heads each head is
    replicated; vocabulary rows are rounded up.
    """
    if isinstance(layout, int):
        layout = Layout(tensor_parallel_size=layout)
    ranks = layout.tensor_parallel_size
    if ranks < 1:
        raise ScenarioError(f"tensor_parallel_size must be at least 1, not {ranks}")
    check_layout(model, layout)
    try:
        local = _local(model, layout)
    except ScenarioError as problem:
        raise ScenarioError(
            f"{sizes_text(layout)} does not fit {model.name}: {problem}; "
            f"sizes that do: {', '.join(map(str, valid_sizes(model, 2 * ranks, layout))) or 'none'}"
        ) from None
    return RankShard(model=model, layout=layout, local=local)


def valid_sizes(model: ModelSpec, largest: int, layout: Layout = _ALONE) -> list[int]:
    """Return the tensor-parallel sizes up to ``largest`` that divide ``model`` evenly.

    The rest of ``layout`` is kept.
    """
    return [ranks for ranks in range(1, largest + 1) if _divides(model, ranks, layout)]


def _divides(model: ModelSpec, ranks: int, layout: Layout) -> bool:
    layout = replace(layout, tensor_parallel_size=ranks)
    try:
        check_layout(model, layout)
        _local(model, layout)
    except ScenarioError:
        return False
    return True


def sizes_text(layout: Layout) -> str:
    """Return the layout's sizes as text: tensor_parallel_size, and the others that are above 1."""
    sizes = f"tensor_parallel_size {layout.tensor_parallel_size}"
    others = [
        f"{name} {size}"
        for name in (
            "pipeline_parallel_size",
            "data_parallel_size",
            "prefill_context_parallel_size",
            "decode_context_parallel_size",
        )
        if (size := getattr(layout, name)) > 1
    ]
    return f"{sizes} (with {', '.join(others)})" if others else sizes


def _local(model: ModelSpec, layout: Layout) -> ModelSpec:
    layers = tuple(_local_group(group, layout) for group in model.layers)
    ranks = layout.tensor_parallel_size
    return replace(
        model,
        layers=layers,
        vocab_size=-(-model.vocab_size // ranks),
        towers=tuple(tower.sharded(ranks) for tower in model.towers),
        encoder_flops=model.encoder_flops / ranks,
    )


def _local_group(group: LayerGroup, layout: Layout) -> LayerGroup:
    return replace(
        group,
        mixer=group.mixer and group.mixer.sharded(layout.tensor_parallel_size),
        ffn=group.ffn and _local_ffn(group.ffn, layout),
    )


def _local_ffn(ffn: Ffn, layout: Layout) -> Ffn:
    """Return a rank's part of an FFN; experts are placed whole, or split by width over all their
    ranks.

    Shared experts are whole if each rank takes its own tokens to them, else split as other FFNs.
    """
    ranks = layout.tensor_parallel_size
    if not isinstance(ffn, Moe):
        return ffn.sharded(ranks)
    shared_ranks = 1 if layout.splits_tokens else ranks
    shared = split_width(ffn.shared_width, shared_ranks, "shared expert width")
    if not layout.enable_expert_parallel:
        width = split_width(ffn.width, layout.expert_ranks, "expert width")
        return replace(ffn, width=width, shared_width=shared)
    if layout.expert_ranks == 1:
        return ffn
    placement = place(
        ffn.num_experts,
        ffn.top_k,
        layout.expert_ranks,
        layout.expert_load,
        redundant=layout.num_redundant_experts,
        balanced=layout.enable_eplb,
    )
    return replace(ffn, shared_width=shared, placement=placement)
