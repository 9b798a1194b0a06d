"""What the ranks of a replica send each other in the layers of a step.

Tensor parallelism needs a sum after each mixer and FFN. If data-parallel ranks share experts,
tokens go to the ranks of their experts and come back, in one of two ways. All-gather and
reduce-scatter (vLLM's default) move every token to every rank; DeepEP moves copies to where their
experts are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.moe import Moe
from costmodels.models.spec import LayerGroup
from costmodels.work import Array, Exchange, Operator, all_reduce, operator

# DeepEP sends a 4-byte scale with every 128 elements in fp8.
_FP8_BYTES = 1 + 4 / 128
_MODES = {"deepep_low_latency": "low_latency", "deepep_high_throughput": "throughput"}


def shares_experts(layout: Layout) -> bool:
    """Return whether ranks with tokens of their own share the experts."""
    return layout.data_parallel_size > 1


def rank_exchanges(
    shard: RankShard, groups: tuple[LayerGroup, ...], tokens: Array
) -> list[Operator]:
    """Return the exchanges that depend only on the tokens of one data-parallel rank."""
    layout, frame = shard.layout, shard.frame
    ranks = layout.tensor_parallel_size
    row_bytes = frame.hidden * frame.precision.communication_bytes
    found = []
    if ranks > 1:
        calls = sum(group.count * group.all_reduces for group in groups)
        own = (
            sum(group.count for group, _ in _with_experts(groups)) if shares_experts(layout) else 0
        )
        found += tensor_sums(layout, calls - own, row_bytes, tokens)
        if own and layout.splits_tokens:
            found.append(_gather("all_gather", "token_gather", layout, own, row_bytes, tokens))
        elif own:
            found += tensor_sums(layout, own, row_bytes, tokens)
    if shares_experts(layout) and layout.all2all_backend in _MODES:
        for group, moe in _with_experts(groups):
            found += _all_to_all(shard, moe, group.count, np.ceil(tokens / ranks))
    return found


def group_exchanges(
    shard: RankShard, groups: tuple[LayerGroup, ...], tokens: Array
) -> list[Operator]:
    """Return the exchanges that depend on ``tokens``, those of all ranks that share experts."""
    layout = shard.layout
    if layout.all2all_backend in _MODES:
        return []
    if layout.enable_expert_parallel:
        ranks, stride = layout.expert_ranks, layout.pipeline_parallel_size
    else:
        ranks = layout.data_parallel_size
        stride = layout.tensor_parallel_size * layout.pipeline_parallel_size
    exchange = Exchange(ranks=ranks, in_node=layout.in_node(ranks, stride))
    found = []
    for group, moe in _with_experts(groups):
        width = moe.latent or shard.frame.hidden
        moved = (ranks - 1) / ranks * width * shard.frame.precision.communication_bytes * tokens
        found += [
            operator(
                "dispatch", "all_gather", group.count, tokens, comm_bytes=moved, exchange=exchange
            ),
            operator(
                "combine",
                "reduce_scatter",
                group.count,
                tokens,
                comm_bytes=moved,
                exchange=exchange,
            ),
        ]
    return found


def tensor_sums(layout: Layout, calls: int, row_bytes: float, tokens: Array) -> list[Operator]:
    """Return ``calls`` sums over tensor-parallel ranks: all-reduces, or each in two halves
    (enable_sp)."""
    ranks = layout.tensor_parallel_size
    if not calls:
        return []
    if not layout.enable_sp:
        return [across(layout, all_reduce("all_reduce", calls, row_bytes, ranks, tokens))]
    return [
        _gather("reduce_scatter", "reduce_scatter", layout, calls, row_bytes, tokens),
        _gather("all_gather", "all_gather", layout, calls, row_bytes, tokens),
    ]


def across(layout: Layout, reduced: Operator) -> Operator:
    """Return an all-reduce with its participants named if the tensor-parallel ranks span several
    domains."""
    ranks = layout.tensor_parallel_size
    near = layout.in_node(ranks)
    if reduced.kind != "all_reduce" or near == ranks:
        return reduced
    return replace(reduced, exchange=Exchange(ranks=ranks, in_node=near))


def stage_send(shard: RankShard, tokens: Array) -> Operator:
    """Return the transfer of ``tokens`` to the next pipeline stage; each rank sends its part."""
    layout, frame = shard.layout, shard.frame
    ranks = layout.tensor_parallel_size
    # The residual is sent beside the layers' output.
    num_bytes = 2 * frame.hidden * frame.precision.communication_bytes * tokens / ranks
    exchange = Exchange(ranks=2, in_node=layout.in_node(2, layout.stage_gpus))
    return operator("stage_send", "send", 1, tokens, comm_bytes=num_bytes, exchange=exchange)


def _with_experts(groups: tuple[LayerGroup, ...]) -> list[tuple[LayerGroup, Moe]]:
    return [(group, group.ffn) for group in groups if isinstance(group.ffn, Moe)]


def _gather(
    kind: str, name: str, layout: Layout, calls: int, row_bytes: float, tokens: Array
) -> Operator:
    """Return a reduce-scatter or an all-gather of all tensor-parallel ranks: half an all-reduce."""
    ranks = layout.tensor_parallel_size
    whole = all_reduce(name, calls, row_bytes / 2, ranks, tokens)
    exchange = Exchange(ranks=ranks, in_node=layout.in_node(ranks))
    return replace(whole, kind=kind, exchange=exchange)  # type: ignore[arg-type]


def _all_to_all(shard: RankShard, moe: Moe, calls: int, tokens: Array) -> list[Operator]:
    """Return dispatch and combine of one rank's ``tokens``; the rank that receives most sets the
    pace.

    The constants of `links` were fitted with random routing, so its floor of imbalance is in them.
    """
    layout, precision = shard.layout, shard.frame.precision
    assert moe.placement is not None
    ranks = layout.expert_ranks
    exchange = Exchange(
        ranks=ranks,
        in_node=layout.in_node(ranks, layout.pipeline_parallel_size),
        mode=_MODES[layout.all2all_backend],  # type: ignore[arg-type]
        copies=moe.top_k,
    )
    elements = (moe.latent or shard.frame.hidden) * moe.top_k * moe.placement.skew * tokens
    _, multiplied = precision.matrix(precision.experts)
    there = _FP8_BYTES if multiplied.bits < 16 else precision.dtype_bytes
    sides = {"dispatch": there, "combine": precision.communication_bytes}
    return [
        operator(name, "all_to_all", calls, tokens, comm_bytes=side * elements, exchange=exchange)
        for name, side in sides.items()
    ]
