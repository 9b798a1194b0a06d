"""Compiles (model, GPU, layout, engine) into the step cost of a whole replica."""

from __future__ import annotations

import numpy as np

from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.layouts.exchanges import stage_send
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload, rank_offload
from costmodels.models.spec import ModelSpec
from costmodels.operators.operators import group_operators
from costmodels.operators.step_tables import padded_sizes
from costmodels.steps.context_cost import context_shared
from costmodels.steps.replica_cost import OVERLAPPED, RankStepCost, ReplicaStepCost
from costmodels.steps.step_cost import compile_step_cost
from costmodels.steps.streamed_cost import head_seconds_ns, streamed
from costmodels.work import Array
from sim.clock import to_ns
from sim.errors import ScenarioError

StepCosts = RankStepCost | ReplicaStepCost
"""The step cost of a replica, whatever its layout."""


def compile_layout_cost(
    model: ModelSpec,
    gpu: GpuSpec,
    layout: Layout,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    offload: Offload | None = None,
    **options: object,
) -> StepCosts:
    """Return the step cost of a replica; the limits are per data-parallel rank and micro-batch.

    ``offload`` is what is kept off the devices. ``options`` and errors are those of
    `compile_step_cost`, whose result is returned if the layout is one tensor-parallel group. Raises
    `ScenarioError` for what cannot be priced with such an offload.
    """
    kernel_cost = compile_step_cost(
        model,
        gpu,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        layout=layout,
        **options,  # type: ignore[arg-type]
    )
    rank: RankStepCost = kernel_cost
    if offload is not None and not offload.is_nothing:
        rank_offload(kernel_cost.shard, offload)
        rank = streamed(kernel_cost, offload)
    if layout.context_ranks > 1:
        rank = context_shared(kernel_cost)
    is_alone = layout.data_parallel_size == layout.pipeline_parallel_size == 1
    if kernel_cost.shared is not None and not (is_alone and rank is kernel_cost):
        raise ScenarioError(
            f"engine.shared_prefix_attention {kernel_cost.shared.kernel} is not priced for several "
            "data-parallel ranks, stages or context-parallel ranks, nor with an offload: which of "
            "them hold a prefix is not followed. Set it to none, or use pool.replicas and "
            "engine.tensor_parallel_size"
        )
    if is_alone:
        return rank
    kernels, ranks = rank.kernels, layout.data_parallel_size
    sizes = padded_sizes(np.arange(max_num_batched_tokens + 1), rank.graph_sizes)
    group = tuple(kernels.price(one) for one in group_operators(rank.shard, ranks * sizes))
    none = np.zeros(max_num_batched_tokens + 1)
    bound = [np.where(one.compute_bound, one.work_s, 0.0) for one in group]
    overlapped = [one.total_s for one in rank.tables.by_tokens if one.operator.name in OVERLAPPED]
    return ReplicaStepCost(
        rank=rank,
        group=group,
        send=_send(rank, sizes),
        group_ns=_ns(sum((one.total_s for one in group), none)),
        group_compute_ns=_ns(sum(bound, none)),
        exchange_ns=_ns(sum(overlapped, none)),
        send_ns=_ns(_send(rank, sizes).total_s),
        head_ns=head_seconds_ns(rank.tables),
    )


def _send(rank: RankStepCost, sizes: Array) -> OperatorSeconds:
    """Price the transfer of hidden states to the next stage, over the link that joins the
    stages."""
    layout, send = rank.shard.layout, stage_send(rank.shard, sizes)
    if layout.pipeline_parallel_size > 1 and layout.stage_link is None:
        return rank.kernels.price(send)
    none = np.zeros_like(sizes)
    link = layout.stage_link
    if link is None:
        return OperatorSeconds(operator=send, work_s=none, fixed_s=none, compute_bound=none > 0)
    # All tensor-parallel ranks of a stage share the link.
    num_bytes = send.comm_bytes * layout.tensor_parallel_size
    return OperatorSeconds(
        operator=send,
        work_s=num_bytes / link.bytes_per_s,
        fixed_s=np.where(sizes > 0, link.latency_s, 0.0),
        compute_bound=none > 0,
    )


def _ns(seconds: Array) -> list[int]:
    return [to_ns(value) for value in seconds.tolist()]
