"""The step cost of a scenario's pool: compiled once for all runs that share it."""

from __future__ import annotations

from typing import Any

from costmodels.drafting.speculative_build import PoolCosts, compile_speculative_cost
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload
from costmodels.models.spec import ModelSpec
from costmodels.steps.layout_cost import compile_layout_cost
from scenarios.kept import content_key, kept
from scenarios.kernels import Kernels
from scenarios.schema import EngineOptions
from scenarios.speculation import Speculating


def pool_cost(
    options: EngineOptions,
    model: ModelSpec,
    gpu: GpuSpec,
    layout: Layout,
    *,
    limits: tuple[int, int],
    profile: EngineProfile,
    kernels: Kernels,
    kernels_key: str,
    offload: Offload | None,
    speculating: Speculating | None,
) -> PoolCosts:
    """``limits``: most tokens and sequences of a step; ``kernels_key`` is that of ``kernels``.

    Raises what compiling raises.
    """
    compiled: dict[str, Any] = {
        "max_num_batched_tokens": limits[0],
        "max_num_seqs": limits[1],
        "profile": profile,
    }
    if speculating is None:
        compiled["offload"] = offload
        compiled["shared_prefix_attention"] = options.shared_prefix_attention
    else:
        compiled["host_speed_factor"] = options.host_speed_factor

    def compile_it() -> PoolCosts:
        if speculating is None:
            return compile_layout_cost(model, gpu, layout, **compiled, **kernels._asdict())
        return compile_speculative_cost(
            model,
            speculating.drafter,
            gpu,
            layout,
            drafts_by_seqs=speculating.speculation.drafts_by_seqs,
            acceptance=speculating.acceptance,
            **compiled,
            **kernels._asdict(),
        )

    return kept("cost", content_key(kernels_key, compiled, speculating), compile_it)
