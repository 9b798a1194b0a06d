"""The step cost of a scenario's pool, compiled once for all runs that share it."""

from __future__ import annotations

from typing import NamedTuple

from costmodels.drafting.speculative_build import compile_speculative_cost
from costmodels.drafting.speculative_cost import SpeculativeStepCost
from costmodels.engines.attention_backends import AttentionBackend, attention_backend
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.memory.streaming import Offload
from costmodels.models.spec import ModelSpec
from costmodels.operators.sources import DATASHEET, FITTED, OperatorSources, load_operators
from costmodels.steps.layout_cost import StepCosts, compile_layout_cost
from costmodels.tables.families import ATTENTION
from scenarios.build.memo import content_key, memoized
from scenarios.build.speculation import SpeculationPlan
from scenarios.files.identity import with_contents
from scenarios.schema import EngineOptions
from sim.errors import ScenarioError


class Kernels(NamedTuple):
    """Operator times and attention backend, as `costmodels.steps.step_cost.compile_step_cost`
    takes them."""

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


def plain_cost(
    choice: KernelChoice,
    kernels: Kernels,
    limits: tuple[int, int],
    *,
    offload: Offload | None,
    shared_prefix_attention: str,
    equal_contexts: bool,
) -> StepCosts:
    """Compile the step cost of a replica that drafts nothing, or reuse it.

    ``limits`` are the most tokens and sequences per step of a rank. Raises what compiling raises.
    """

    def compile_it() -> StepCosts:
        return compile_layout_cost(
            choice.model,
            choice.gpu,
            choice.layout,
            max_num_batched_tokens=limits[0],
            max_num_seqs=limits[1],
            profile=choice.profile,
            offload=offload,
            shared_prefix_attention=shared_prefix_attention,
            equal_contexts=equal_contexts,
            **kernels._asdict(),
        )

    of_step = (limits, choice.profile, offload, shared_prefix_attention, equal_contexts)
    return memoized("cost", content_key(choice.key, *of_step), compile_it)


def drafting_cost(
    choice: KernelChoice, kernels: Kernels, limits: tuple[int, int], speculation: SpeculationPlan
) -> SpeculativeStepCost:
    """Compile the step cost of a replica that speculates, or reuse it; see `plain_cost`."""

    def compile_it() -> SpeculativeStepCost:
        return compile_speculative_cost(
            choice.model,
            speculation.drafter,
            choice.gpu,
            choice.layout,
            drafts_by_seqs=speculation.speculation.drafts_by_seqs,
            acceptance=speculation.acceptance,
            max_num_batched_tokens=limits[0],
            max_num_seqs=limits[1],
            profile=choice.profile,
            host_speed_factor=choice.options.host_speed_factor,
            **kernels._asdict(),
        )

    factor = choice.options.host_speed_factor
    key = content_key(choice.key, limits, choice.profile, factor, speculation)
    return memoized("cost", key, compile_it)
