"""A calibration: the operator tables of one GPU in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from costmodels.gpu_spec import GpuSpec
from costmodels.operator_tables.kinds import KINDS, TableKind
from costmodels.operator_tables.store import load_table
from costmodels.operator_tables.table import OperatorTable
from sim.errors import ScenarioError

_MEASURED = Path(__file__).parents[1] / "measured"


def load_folder(folder: Path, kinds: Sequence[TableKind] | None = None) -> list[OperatorTable]:
    """All tables of a folder, or those of some kinds, by file name.

    Raises `ScenarioError` where there are none at all, and what `load_table` raises.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise ScenarioError(
            f"{folder}: no operator tables (.parquet); `fleetcast calibrate import` writes them"
        )
    tables = [load_table(path) for path in paths if kinds is None or _may_hold(path, kinds)]
    return [table for table in tables if kinds is None or table.meta.kind in kinds]


def _may_hold(path: Path, kinds: Sequence[TableKind]) -> bool:
    """Names that `fleetcast calibrate import` gives start with the kind; others may hold any."""
    start = path.name.partition("-")[0]
    return start in kinds or start not in KINDS


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
