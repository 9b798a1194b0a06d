"""Which source serves which operator: fitted constants, the datasheet, or measured tables."""

from __future__ import annotations

from pathlib import Path

from costmodels.efficiency import Efficiency, load_efficiency
from costmodels.gpu_spec import GpuSpec
from costmodels.model_spec import ModelSpec
from costmodels.operator_tables.bundle import OperatorTables, operator_tables
from sim.errors import ScenarioError

FITTED, DATASHEET, AIC = "fitted", "datasheet", "aic"
_IN_PACKAGE = {
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
}


def load_operators(
    source: str, gpu: GpuSpec, model: ModelSpec, fitted: Efficiency, ranks: int = 1
) -> tuple[Efficiency, OperatorTables | None]:
    """The efficiency constants and tables of a source.

    ``fitted``: the GPU's fitted constants alone (generic ones where there are none).
    ``datasheet``: generic constants alone. ``aic``: AIConfigurator's measured tables of this GPU
    before the fitted constants. Else files of `save_table`, separated by commas, before them.
    Raises `ScenarioError` where there is no such source, or it does not fit GPU or model.
    """
    if source == FITTED:
        return fitted, None
    if source == DATASHEET:
        return load_efficiency(gpu, generic_only=True), None
    if source == AIC:
        return fitted, _aic(gpu, model, ranks)
    paths = [Path(part.strip()) for part in source.split(",")]
    if any(path.suffix != ".parquet" for path in paths):
        raise ScenarioError(
            f"operators {source!r} is neither {FITTED}, {DATASHEET} nor {AIC}, nor table files "
            "(.parquet, separated by commas)"
        )
    from costmodels.operator_tables.store import load_table  # pyarrow: only where asked for

    tables = [load_table(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.meta.gpu != gpu.name:
            raise ScenarioError(
                f"{path} was measured on {table.meta.gpu}, the scenario's GPU is {gpu.name}"
            )
    return fitted, operator_tables(tables)


def _aic(gpu: GpuSpec, model: ModelSpec, ranks: int) -> OperatorTables:
    # Reading parquet takes a second: only where it is asked for.
    from costmodels.operator_tables.aic import AicChoice, aic_tables
    from costmodels.operator_tables.kinds import TableKind

    kinds: list[TableKind] = ["gemm", "prefill_attention", "decode_attention"]
    if model.num_moe_layers:
        kinds.append("grouped_gemm")
    if ranks > 1:
        kinds.append("all_reduce")
    precision = model.precision
    linear, experts = _in_package(precision.attention), _in_package(precision.experts)
    choice = AicChoice(kv=_in_package(precision.kv), moe_mode=experts)
    tables = list(aic_tables(gpu.name, choice, kinds).values())
    # Its fp8_block GEMMs were timed with their launches: on B200 0.24 ms for 1 row and for 4,096.
    # A decode step replays a graph, so they keep the roofline.
    if linear == "fp8":
        in_fp8 = AicChoice(gemm_mode="fp8")
        tables += aic_tables(gpu.name, in_fp8, ["gemm"]).values()
    return operator_tables(tables)


def _in_package(name: str) -> str:
    """A number format in the package's words."""
    if name not in _IN_PACKAGE:
        raise ScenarioError(
            f"operators {AIC} has no tables of {name} here; use {', '.join(_IN_PACKAGE)}, or "
            f"operators {FITTED}"
        )
    return _IN_PACKAGE[name]
