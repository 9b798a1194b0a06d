"""The KV blocks that the memory plan predicts, against those the engine allocated."""

from __future__ import annotations

from costmodels.memory.plan import plan_memory
from scenarios.accuracy import AccuracyFigure
from scenarios.validation.system import System


def score_blocks(system: System) -> AccuracyFigure:
    """Raises ScenarioError where the plan does not fit the device."""
    engine = system.pool.engine
    memory = plan_memory(
        system.model,
        system.gpu,
        tensor_parallel_size=system.tensor_parallel_size,
        gpu_memory_utilization=system.gpu_memory_utilization,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        block_size=engine.block_size,
        profile=system.profile,
    )
    return AccuracyFigure(
        run=f"{system.key}:memory",
        regime="memory",
        metric="num_gpu_blocks",
        statistic="value",
        unit="count",
        predicted=memory.num_gpu_blocks,
        measured=engine.num_gpu_blocks,
        count=1,
    )
