"""Which tensor-parallel layouts hold a model, as it is and with its matrices in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from costmodels.device_memory import fill_device
from costmodels.drafters import Drafter
from costmodels.engine_profile import EngineProfile
from costmodels.gpu_spec import GpuSpec
from costmodels.layout import Layout
from costmodels.model_spec import ModelSpec, quantised
from costmodels.parallel import valid_sizes

# Ranks of the largest domain on the market (NVL72).
_LARGEST_NODE = 72


class Fit(NamedTuple):
    """The fewest ranks that hold a model with its matrices in one format."""

    weights: str
    """The format of the layers' matrices; several joined by ``+``."""
    tensor_parallel_size: int | None
    """None: no size does."""
    sequences: int
    """Sequences of the asked length that fit it."""


def smallest_layouts(
    model: ModelSpec,
    gpu: GpuSpec,
    prompt_tokens: int,
    output_tokens: int,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    gpu_memory_utilization: float,
    block_size: int,
    profile: EngineProfile,
    layout: Layout,
    drafter: Drafter | None = None,
) -> list[Fit]:
    """For each format the smallest tensor-parallel size that holds at least one sequence.

    The rest of the layout stays as it is in ``layout``. The formats: as given, 8 bits, 4 bits; only
    those with fewer bytes than the model has.
    """
    narrow = "fp8" if gpu.fp8_flop_per_s else "int8" if gpu.int8_op_per_s else "w8a16"
    candidates = [model, quantised(model, linear=narrow), quantised(model, linear="int4_g128")]
    smaller = [one for one in candidates[1:] if one.weight_bytes < model.weight_bytes]
    found = []
    for candidate in (model, *smaller):
        name = candidate.linear_dtype
        for ranks in valid_sizes(candidate, _LARGEST_NODE, layout):
            plan = fill_device(
                candidate,
                gpu,
                layout=replace(layout, tensor_parallel_size=ranks),
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                gpu_memory_utilization=gpu_memory_utilization,
                block_size=block_size,
                profile=profile,
                drafter=drafter,
            )
            sequences = plan.pool_bytes // plan.paged_bytes(prompt_tokens, output_tokens)
            if sequences:
                found.append(Fit(name, ranks, sequences))
                break
        else:
            found.append(Fit(name, None, 0))
    return found
