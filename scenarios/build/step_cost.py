"""The step cost of a scenario's pool, compiled once for all runs that share it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from costmodels.drafting.speculative_build import compile_speculative_cost
from costmodels.engines.attention_backends import AttentionBackend, attention_backend
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload
from costmodels.models.spec import ModelSpec
from costmodels.operators.sources import DATASHEET, FITTED, OperatorSources, load_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import PoolCost
from costmodels.tables.families import ATTENTION
from scenarios.build.memo import content_key, memoized
from scenarios.build.speculation import SpeculationPlan
from scenarios.files.identity import with_contents
from scenarios.schema import EngineOptions
from sim.errors import ScenarioError


class Kernels(NamedTuple):
    """Operator times and attention backend, fields of `costmodels.steps.compile.StepOptions`."""

    operators: OperatorSources
    backend: AttentionBackend | None


class KernelChoice(NamedTuple):
    """Everything that the choice of kernels depends on."""

    options: EngineOptions
    gpu: GpuSpec
    model: ModelSpec
    profile: EngineProfile
    fitted: Efficiency
    """The profile's fitted constants."""
    layout: Layout

    @property
    def key(self) -> str:
        """Key of what `load_kernels` returns (see `scenarios.build.memo`)."""
        named = (with_contents(self.options.operators), self.options.attention_backend)
        kernels = dict(self.profile.kernels)
        return content_key(*named, self.gpu, self.model, kernels, self.fitted, self.layout)


def load_kernels(wanted: KernelChoice) -> Kernels:
    """Load the kernels that the engine's options name.

    Raises `ScenarioError` if they do not exist, or not for this GPU or model.
    """
    return memoized("kernels", wanted.key, lambda: _load(*wanted))


def _load(
    options: EngineOptions,
    gpu: GpuSpec,
    model: ModelSpec,
    profile: EngineProfile,
    fitted: Efficiency,
    layout: Layout,
) -> Kernels:
    name = options.attention_backend
    operators = load_operators(options.operators, gpu, model, fitted, layout, profile.kernels)
    for one in operators.families:
        if name != "auto" and one.family in ATTENTION and one.source not in (FITTED, DATASHEET):
            raise ScenarioError(
                f"engine.attention_backend must be auto with {one.family} of engine.operators "
                f"{one.source}: its tables are of the kernels that the engine chose"
            )
    return Kernels(operators, attention_backend(name, gpu, model, operators.efficiency))


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
    speculating: SpeculationPlan | None,
) -> PoolCost:
    """Compile the step cost of a pool, or reuse it.

    ``limits`` holds the most tokens and sequences per step; ``kernels_key`` is the key of
    ``kernels``. Raises what compiling raises.
    """
    # Without the kernels, which have a key of their own.
    common = StepOptions(
        layout=layout,
        max_num_batched_tokens=limits[0],
        max_num_seqs=limits[1],
        profile=profile,
        offload=offload,
        shared_prefix_attention=options.shared_prefix_attention,
    )

    def compile_it() -> PoolCost:
        step_options = replace(common, operators=kernels.operators, backend=kernels.backend)
        if speculating is None:
            return compile_step_cost(model, gpu, step_options)
        return compile_speculative_cost(
            model,
            speculating.drafter,
            gpu,
            step_options,
            drafts_by_seqs=speculating.speculation.drafts_by_seqs,
            acceptance=speculating.acceptance,
            host_speed_factor=options.host_speed_factor,
        )

    key = content_key(kernels_key, common, speculating, options.host_speed_factor)
    return memoized("cost", key, compile_it)
