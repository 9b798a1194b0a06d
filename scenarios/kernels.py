"""Where a scenario's kernel times come from: constants, tables, and a backend of attention."""

from __future__ import annotations

from typing import NamedTuple

from costmodels.attention_backends import AttentionBackend, attention_backend
from costmodels.efficiency import Efficiency
from costmodels.gpu_spec import GpuSpec
from costmodels.model_spec import ModelSpec
from costmodels.operator_sources import DATASHEET, FITTED, load_operators
from costmodels.operator_tables.bundle import OperatorTables
from scenarios.schema import EngineOptions
from sim.errors import ScenarioError


class Kernels(NamedTuple):
    """As `costmodels.step_cost.compile_step_cost` takes them."""

    efficiency: Efficiency
    operator_tables: OperatorTables | None
    backend: AttentionBackend | None


def load_kernels(
    options: EngineOptions, gpu: GpuSpec, model: ModelSpec, fitted: Efficiency
) -> Kernels:
    """What the engine's options name; ``fitted`` are the profile's constants.

    Raises ScenarioError for what is not there, or not for this GPU or model.
    """
    backend, operators = options.attention_backend, options.operators
    if backend != "auto" and operators not in (FITTED, DATASHEET):
        raise ScenarioError(
            f"engine.attention_backend must be auto with engine.operators {operators}: its tables "
            "are of the kernels that the engine chose"
        )
    efficiency, tables = load_operators(operators, gpu, model, fitted, options.tensor_parallel_size)
    return Kernels(efficiency, tables, attention_backend(backend, gpu, model, efficiency))
