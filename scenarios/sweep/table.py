"""The table of a sweep: a row a run, every axis and every figure a column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.sweep.points import Points
from scenarios.sweep.results import Result
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

FILE = "sweep.parquet"


def sweep_table(points: Points, known: Mapping[str, Result]) -> pd.DataFrame:
    """Rows in order of points and seeds, of runs that have a result, and of refused points.

    ``point``, the axes by field, ``seed``, ``status`` (done, failed, lost, refused), ``error``,
    ``key``, then the columns of `scenarios.sweep.columns`. The same results give the same table,
    wherever and in whatever order they were computed.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    figures: dict[str, None] = {}
    for point in points.points:
        head = {"point": point.index, **point.cells}
        if point.refused is not None:
            rows.append({**head, "status": "refused", "error": point.refused})
        for run in point.runs:
            result = known.get(run.key)
            if result is None:
                continue
            of_run = {"seed": run.seed, "status": result.status, "error": result.error}
            figures |= dict.fromkeys(result.row)
            # An axis and a figure of one name: the axis is what was asked for.
            rows.append({**result.row, **head, **of_run, "key": run.key})
    axes = [axis.key for axis in points.axes]
    first = list(dict.fromkeys(["point", *axes, "seed", "status", "error", "key"]))
    columns = [*first, *(name for name in figures if name not in first)]
    frame = pd.DataFrame(rows, columns=columns)
    for key in axes:
        frame[key] = _column([row[key] for row in rows])
    frame["seed"] = frame["seed"].astype("Int64")
    for name in ("status", "error", "key"):
        frame[name] = frame[name].astype("string")
    return frame


def write_table(frame: pd.DataFrame, folder: Path) -> Path:
    """Write sweep.parquet, whole or not at all. Raises ScenarioError where it cannot be written."""
    path, part = folder / FILE, folder / f".{FILE}.part"
    try:
        frame.to_parquet(part, index=False)
        part.replace(path)
    except OSError as error:
        raise ScenarioError(f"cannot write {path}: {error.strerror}") from None
    return path


def _column(values: list[Any]) -> pd.Series[Any]:
    """Numbers or truth values where all are; else text, and nothing where there was null."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and None not in values:
        return pd.Series(values, dtype="int64")
    if kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    return pd.Series([None if v is None else str(v) for v in values], dtype="string")
