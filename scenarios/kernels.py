"""Where a scenario's kernel times come from: constants, tables, and a backend of attention."""

from __future__ import annotations

from typing import NamedTuple

from costmodels.engines.attention_backends import AttentionBackend, attention_backend
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.models.spec import ModelSpec
from costmodels.operators.sources import DATASHEET, FITTED, OperatorSources, load_operators
from costmodels.tables.families import ATTENTION
from scenarios.contents import with_contents
from scenarios.kept import content_key, kept
from scenarios.schema import EngineOptions
from sim.errors import ScenarioError


class Kernels(NamedTuple):
    """As `costmodels.steps.step_cost.compile_step_cost` takes them."""

    operators: OperatorSources
    backend: AttentionBackend | None


class Wanted(NamedTuple):
    """What kernels are asked for."""

    options: EngineOptions
    gpu: GpuSpec
    model: ModelSpec
    profile: EngineProfile
    fitted: Efficiency
    """The profile's constants."""
    layout: Layout

    @property
    def key(self) -> str:
        """Of what `load_kernels` gives (see `scenarios.kept`)."""
        named = (with_contents(self.options.operators), self.options.attention_backend)
        kernels = dict(self.profile.kernels)
        return content_key(*named, self.gpu, self.model, kernels, self.fitted, self.layout)


def load_kernels(wanted: Wanted) -> Kernels:
    """What the engine's options name.

    Raises ScenarioError for what is not there, or not for this GPU or model.
    """
    return kept("kernels", wanted.key, lambda: _load(*wanted))


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
