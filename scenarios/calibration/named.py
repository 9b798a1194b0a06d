"""Calibrations by the name a user gives them: a folder, a file, `ours` or `aic`."""

from __future__ import annotations

from pathlib import Path

from costmodels.hardware.gpus import load_gpu
from costmodels.operators.sources import AIC, OURS
from costmodels.tables.store import load_folder, load_table, own_folder
from costmodels.tables.table import OperatorTable
from sim.errors import ScenarioError

_AIC_MODES = ("bfloat16", "fp8", "fp8_block")
_AIC_KV = ("bfloat16", "fp8")
DEFAULT_GPU = "H200"


def load_named(name: str, gpu: str | None) -> list[OperatorTable]:
    """The tables of a name; ``gpu`` says which of `ours` and `aic`.

    Raises `ScenarioError` where there is no such calibration.
    """
    if name == OURS:
        return load_folder(own_folder(load_gpu(gpu or DEFAULT_GPU)))
    if name == AIC:
        return _aic(gpu or DEFAULT_GPU)
    path = Path(name)
    if path.is_dir():
        return load_folder(path)
    if not path.is_file():
        raise ScenarioError(
            f"{name!r} is no calibration: neither {OURS}, {AIC}, nor a folder or file of tables"
        )
    return [load_table(path)]


def _aic(gpu: str) -> list[OperatorTable]:
    """All that AIConfigurator has of a GPU in vLLM, in the formats that ours may be in too."""
    from costmodels.tables.aic import AIC_KINDS, AicChoice, aic_tables, check_package

    check_package(gpu)
    choices = [AicChoice(gemm_mode=mode) for mode in _AIC_MODES]
    choices += [AicChoice(kv=kv) for kv in _AIC_KV[1:]]
    choices += [AicChoice(workload="balanced")]
    found: dict[str, OperatorTable] = {}
    for kind in AIC_KINDS:
        for choice in choices:
            try:
                (table,) = aic_tables(gpu, choice, [kind]).values()
            except ScenarioError:  # not measured in this format
                continue
            found.setdefault(table.content_hash, table)
    if not found:
        raise ScenarioError(f"aiconfigurator-core has no operators of {gpu}")
    return list(found.values())
