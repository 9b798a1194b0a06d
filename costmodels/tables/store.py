"""Operator tables on disk: one parquet file per table, with its metadata in the parquet schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from costmodels.hardware.gpus import GPU_FILE, GpuSpec, load_gpu
from costmodels.tables.kinds import KINDS, Precision, TableKind
from costmodels.tables.table import (
    FORMAT_VERSION,
    HeldOutError,
    LeaveOneOutError,
    LinkFit,
    OperatorTable,
    TableMeta,
    operator_table,
)
from sim.errors import ScenarioError

_KEY = b"fleetcast_operator_table"


def save_table(table: OperatorTable, path: Path) -> None:
    """Write ``table`` to ``path`` (a ``.parquet`` file), with its content hash."""
    about = {
        "meta": asdict(table.meta),
        "error": table.error and asdict(table.error),
        "num_points": len(table),
        "content_hash": table.content_hash,
    }
    columns = pa.table({name: pa.array(array) for name, array in table.columns.items()})
    pq.write_table(columns.replace_schema_metadata({_KEY: json.dumps(about)}), path)


def load_table(path: Path) -> OperatorTable:
    """Read a table and verify it.

    A ``gpu.yaml`` beside it may describe its device. Raises `ScenarioError` naming the file, the
    field and the right value: not such a file, another format version, an unknown kind, GPU or
    field, columns that do not fit, a changed value.
    """
    try:
        content = pq.read_table(path)
    except (OSError, pa.ArrowException) as problem:
        raise ScenarioError(f"{path}: cannot be read as parquet: {problem}") from problem
    about = _about(path, content.schema.metadata or {})
    try:
        meta = _meta(about["meta"])
        error_fields = about["error"]
        error = LeaveOneOutError(**error_fields) if error_fields else None
        columns = {
            name: content[name].to_numpy().astype(np.float64) for name in content.column_names
        }
        table = operator_table(meta, columns, error, _gpu_beside(path, meta.gpu))
        if table.gpu is None:
            load_gpu(meta.gpu)
    except (TypeError, ValueError, KeyError, ScenarioError) as problem:
        raise ScenarioError(f"{path}: {problem}") from problem
    if about["num_points"] != len(table):
        raise ScenarioError(
            f"{path}: num_points is {about['num_points']}, but the file has {len(table)} points"
        )
    if about["content_hash"] != table.content_hash:
        raise ScenarioError(
            f"{path}: content_hash is {about['content_hash']}, but the content has "
            f"{table.content_hash}: the file was changed after it was saved; import it again"
        )
    return table


def _gpu_beside(path: Path, name: str) -> GpuSpec | None:
    """Return the device that a file beside the table describes, if it is the table's."""
    beside = path.with_name(GPU_FILE)
    if not beside.is_file():
        return None
    gpu = load_gpu(str(beside))
    return gpu if gpu.name == name else None


def _about(path: Path, metadata: dict[bytes, bytes]) -> dict[str, Any]:
    if _KEY not in metadata:
        raise ScenarioError(
            f"{path}: not an operator table: no {_KEY.decode()} in its parquet metadata; "
            f"save_table writes such files"
        )
    try:
        about = json.loads(metadata[_KEY])
    except json.JSONDecodeError as error:
        raise ScenarioError(f"{path}: {_KEY.decode()} is not JSON: {error}") from error
    wanted = {"meta", "error", "num_points", "content_hash"}
    if not isinstance(about, dict) or set(about) != wanted:
        raise ScenarioError(f"{path}: {_KEY.decode()} must hold exactly {sorted(wanted)}")
    version = about["meta"].get("format_version") if isinstance(about["meta"], dict) else None
    if version != FORMAT_VERSION:
        raise ScenarioError(f"{path}: format_version is {version!r}, not {FORMAT_VERSION}")
    return about


def _meta(fields: dict[str, Any]) -> TableMeta:
    if fields.get("kind") not in KINDS:
        raise ScenarioError(
            f"kind is {fields.get('kind')!r}, not one of {', '.join(get_args(TableKind))}"
        )
    if fields.get("unit") != "s":
        raise ScenarioError(f"unit is {fields.get('unit')!r}, not 's'")
    held_out = fields["held_out"]
    return TableMeta(
        **{
            **fields,
            "precision": Precision(**fields["precision"]),
            "machines": tuple(fields["machines"]),
            "held_out": held_out and HeldOutError(**held_out),
            "fits": tuple(
                LinkFit(**{**fit, "regimes": tuple(map(tuple, fit["regimes"]))})
                for fit in fields["fits"]
            ),
        }
    )


_MEASURED = Path(__file__).parents[1] / "measured"


def load_folder(folder: Path, kinds: Sequence[TableKind] | None = None) -> list[OperatorTable]:
    """Return all tables of a folder, or those of some kinds, by file name.

    Raises `ScenarioError` if there are none at all, and what `load_table` raises.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise ScenarioError(
            f"{folder}: no operator tables (.parquet); `fleetcast calibrate import` writes them"
        )
    tables = [load_table(path) for path in paths if kinds is None or _may_hold(path, kinds)]
    return [table for table in tables if kinds is None or table.meta.kind in kinds]


def _may_hold(path: Path, kinds: Sequence[TableKind]) -> bool:
    """Return whether a file may hold these kinds.

    Names given by `fleetcast calibrate import` start with the kind; other files may hold any.
    """
    start = path.name.partition("-")[0]
    return start in kinds or start not in KINDS


def own_folder(gpu: GpuSpec) -> Path:
    """Return the folder of our own measurements of a GPU, as installed with the package.

    Raises `ScenarioError` if the GPU was not measured.
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
