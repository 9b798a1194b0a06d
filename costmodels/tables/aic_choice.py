"""AIConfigurator's tables for the families of a model, as a scenario names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodels.hardware.gpus import GpuSpec
from costmodels.models.spec import ModelSpec
from costmodels.tables.aic import AIC_KINDS, BACKENDS, AicChoice, aic_tables, check_package
from costmodels.tables.families import Lack
from costmodels.tables.kinds import TableKind
from costmodels.tables.table import OperatorTable
from sim.errors import ScenarioError

_IN_PACKAGE = {
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
}


def aic_reader(
    source: str, gpu: GpuSpec, model: ModelSpec
) -> Callable[[TableKind], list[OperatorTable]]:
    """Return a reader of the package's tables of a family, in the formats of ``model``; it raises
    `Lack`.

    ``source`` is ``aic`` or, with an engine and version that the data must be from,
    ``aic:vllm-0.24``. Raises `ScenarioError` if the package has nothing for the GPU or the engine.
    """
    backend, version = _asked(source)
    check_package(gpu.name)

    def read(family: TableKind) -> list[OperatorTable]:
        if family not in AIC_KINDS:
            raise Lack(f"no {family} table")
        precision = model.precision
        linear, experts = (_in_package(name) for name in (precision.attention, precision.experts))
        choice = AicChoice(backend=backend, kv=_in_package(precision.kv), moe_mode=experts)
        choices = [choice]
        # Its fp8_block GEMMs were timed with their launches: on B200 0.24 ms for 1 row and for
        # 4,096. A decode step replays a graph, so they are left out.
        if family == "gemm" and linear == "fp8":
            choices.append(replace(choice, gemm_mode="fp8"))
        try:
            found = [aic_tables(gpu.name, one, [family])[family] for one in choices]
        except ScenarioError as error:
            raise Lack(str(error)) from None
        if version:
            _check_version(source, version, found)
        return found

    return read


def _asked(source: str) -> tuple[str, str]:
    _, _, asked = source.partition(":")
    if not asked:
        return BACKENDS[0], ""
    backend, _, version = asked.partition("-")
    if backend not in BACKENDS or not re.fullmatch(r"\d+(\.\d+)*", version):
        raise ScenarioError(
            f"operators {source!r}: after aic: comes an engine and its version, as vllm-0.24; "
            f"engines are {', '.join(BACKENDS)}"
        )
    return backend, version


def _check_version(source: str, version: str, tables: Sequence[OperatorTable]) -> None:
    for table in tables:
        has = table.meta.engine_version
        if has != version and not has.startswith(f"{version}."):
            raise ScenarioError(
                f"operators {source!r}: the installed package's {table.meta.kind} of "
                f"{table.meta.gpu} is of {table.meta.engine} {has}: name that version, or leave it "
                "out"
            )


def _in_package(name: str) -> str:
    """Return the package's name of a number format. Raises `Lack` if it has none."""
    if name not in _IN_PACKAGE:
        raise Lack(f"no tables of {name} here, but of {', '.join(_IN_PACKAGE)}")
    return _IN_PACKAGE[name]
