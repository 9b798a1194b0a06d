"""What a drafter adds to each device: its weights, and how they are laid out over the ranks."""

from __future__ import annotations

from dataclasses import replace

from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.drafters import Drafter
from costmodels.models.spec import ModelSpec


def draft_weight_bytes(drafter: Drafter, layout: Layout) -> int:
    """Return the bytes of a drafter's weights on one rank, without tables shared with the
    target."""
    total = 0
    for spec, copies in drafter.weight_bytes_by_spec:
        local = shard(spec, draft_layout(layout, spec)[0]).local
        params, tables = local.params(), 0
        if drafter.own_tables:
            tables = params.embedding
        elif drafter.own_head and spec is drafter.draft:
            tables = local.embedding_params
        total += copies * local.precision.weight_bytes(replace(params, embedding=tables))
    return total


def draft_layout(layout: Layout, draft: ModelSpec) -> tuple[Layout, Layout | None]:
    """Return the layout that a drafter's model is compiled in, and the ranks that its sequences are
    dealt to.

    A drafter without experts shares nothing between data-parallel ranks.
    """
    if draft.num_experts:
        return layout, None
    own = Layout(
        tensor_parallel_size=layout.tensor_parallel_size, gpus_per_node=layout.gpus_per_node
    )
    ranks = layout.data_parallel_size
    return own, Layout(data_parallel_size=ranks) if ranks > 1 else None
