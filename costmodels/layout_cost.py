"""Compiles (model, GPU, layout, engine) into the step cost of a whole replica."""

from __future__ import annotations

import numpy as np

from costmodels.exchanges import stage_send
from costmodels.gpu_spec import GpuSpec
from costmodels.group_cost import GroupStepCost
from costmodels.layout import Layout
from costmodels.model_spec import ModelSpec
from costmodels.operators import group_operators
from costmodels.roofline import OperatorSeconds
from costmodels.step_cost import RooflineStepCost, compile_step_cost
from costmodels.step_tables import padded_sizes
from costmodels.work import Array
from sim.clock import to_ns
from sim.errors import ScenarioError

_OVERLAPPED = ("dispatch", "combine")


def compile_layout_cost(
    model: ModelSpec,
    gpu: GpuSpec,
    layout: Layout,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    **options: object,
) -> RooflineStepCost | GroupStepCost:
    """The step cost of a replica; the limits are of one data-parallel rank and micro-batch.

    ``options`` and errors are those of `compile_step_cost`, whose result this is where one group of
    tensor-parallel ranks is all there is.
    """
    rank = compile_step_cost(
        model,
        gpu,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        layout=layout,
        **options,  # type: ignore[arg-type]
    )
    if layout.data_parallel_size == layout.pipeline_parallel_size == 1:
        return rank
    if rank.shared is not None:
        raise ScenarioError(
            f"engine.shared_prefix_attention {rank.shared.kernel} is not priced for several "
            "data-parallel ranks or stages: which of them hold a prefix is not followed. Set it to "
            "none, or use pool.replicas and engine.tensor_parallel_size"
        )
    kernels, ranks = rank.kernels, layout.data_parallel_size
    sizes = padded_sizes(np.arange(max_num_batched_tokens + 1), rank.graph_sizes)
    group = tuple(kernels.price(one) for one in group_operators(rank.shard, ranks * sizes))
    none = np.zeros(max_num_batched_tokens + 1)
    bound = [np.where(one.compute_bound, one.work_s, 0.0) for one in group]
    overlapped = [one.total_s for one in rank.tables.by_tokens if one.operator.name in _OVERLAPPED]
    if layout.pipeline_parallel_size > 1:
        send = kernels.price(stage_send(rank.shard, sizes))
    else:
        send = OperatorSeconds(
            operator=stage_send(rank.shard, sizes),
            work_s=none,
            fixed_s=none,
            compute_bound=none > 0,
        )
    return GroupStepCost(
        rank=rank,
        group=group,
        send=send,
        group_ns=_ns(sum((one.total_s for one in group), none)),
        group_compute_ns=_ns(sum(bound, none)),
        exchange_ns=_ns(sum(overlapped, none)),
        send_ns=_ns(send.total_s),
        head_ns=_ns(rank.tables.logit_seconds()),
    )


def _ns(seconds: Array) -> list[int]:
    return [to_ns(value) for value in seconds.tolist()]
