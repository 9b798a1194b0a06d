"""A calibration: the operator tables of one GPU in one folder."""

from __future__ import annotations

from pathlib import Path

from costmodels.gpu_spec import GpuSpec
from costmodels.operator_tables.store import load_table
from costmodels.operator_tables.table import OperatorTable
from sim.errors import ScenarioError

_MEASURED = Path(__file__).parents[1] / "measured"


def load_folder(folder: Path) -> list[OperatorTable]:
    """All tables of a folder, by file name.

    Raises `ScenarioError` where there are none, and what `load_table` raises.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise ScenarioError(
            f"{folder}: no operator tables (.parquet); `fleetcast calibrate import` writes them"
        )
    return [load_table(path) for path in paths]


def own_folder(gpu: GpuSpec) -> Path:
    """Where our own measurements of a GPU are, as installed with the package.

    Raises `ScenarioError` where we have not measured it.
    """
    folder = _MEASURED / gpu.name.casefold()
    if not any(folder.glob("*.parquet")):
        measured = sorted(path.name for path in _MEASURED.glob("*") if any(path.glob("*.parquet")))
        raise ScenarioError(
            f"there are no measurements of {gpu.name} in fleetcast; there are of "
            f"{', '.join(measured) or 'none'}. `fleetcast calibrate run` makes them on a device "
            "at hand"
        )
    return folder
