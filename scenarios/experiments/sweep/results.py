"""Results by their address, in one file that only grows, so that no run is repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from scenarios.experiments.sweep.grid import Grid
from scenarios.run.result import RunResult
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
"""Column -> number, text, or None where there is none."""


def row_of(result: RunResult) -> Row:
    """Return every figure of the summary, the counts behind them, and where the time went.

    Columns are named like figures: ``ttft.p99`` (seconds), ``goodput`` (requests/s); accounts of
    mean end-to-end time are ``e2e_account.<name>`` (seconds per finished request).
    """
    summary = result.summary
    row: Row = {}
    for figure in summary["figures"]:
        name, statistic = figure["name"], figure["statistic"]
        row[name if statistic == "value" else f"{name}.{statistic}"] = figure["value"]
    if (
        not result.metrics.met
    ):  # without a target every finished request is good, which says nothing
        row |= dict.fromkeys(("attainment", "goodput"))
    gpus = summary["conditions"]["gpus"]
    limit = summary["saturation"] or {}
    row |= {
        "gpus": gpus,
        "saturation": limit.get("saturation_per_s"),
        "load": limit.get("load"),
    }
    for name in ("goodput", "output_throughput", "saturation"):
        row[f"{name}_per_gpu"] = None if row[name] is None else row[name] / gpus
    row |= {f"attainment_of.{name}": share for name, share in _targets(summary).items()}
    for one in summary["classes"]:
        row[f"class.{one['name']}.attainment"] = one["attainment"]
    counts = {k: v for k, v in summary["requests"].items() if k != "reject_reasons"}
    row |= {f"requests.{name}": count for name, count in counts.items()}
    row |= {f"e2e_account.{name}": s for name, s in summary["e2e_accounts_s"].items()}
    row |= {
        "evidence": next((f["evidence"] for f in summary["figures"] if f["evidence"]), None),
        "warnings": ", ".join(warning["code"] for warning in summary["warnings"]) or None,
        "calibration_sha256": summary["conditions"]["calibration_sha256"],
    }
    return row


def _targets(summary: dict[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = summary["slo"].get("by_target") or {}
    return found


RESULTS_FILE = "results.jsonl"
Status = Literal["done", "failed", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run."""

    key: str
    status: Status
    """``failed``: it cannot be run as written, and would fail again.

    ``lost``: its worker died or the simulator broke; the next start tries it again.
    """
    row: Row = field(default_factory=dict)
    error: str | None = None
    core_s: float = 0.0
    """CPU seconds that the run took."""
    files: dict[str, bytes] | None = None
    """A full result folder on its way from a worker, if it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What this start of a sweep did."""

    known: int
    """Results that existed before."""
    simulated: int
    wall_s: float
    core_s: float
    """CPU seconds inside simulations."""


class Results:
    """The results of a folder, one per line, which only one process at a time may write.

    A process that is killed leaves at most one incomplete line, which is not read.
    """

    def __init__(self, folder: Path) -> None:
        """Read existing results. Raises `ScenarioError` if the folder cannot be read or written."""
        self.path = folder / RESULTS_FILE
        self.known: dict[str, Result] = {}
        try:
            self._file: IO[str] = self.path.open("a+", encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"{self.path}: cannot be used: {error.strerror}") from None
        if not _locked(self._file):
            self._file.close()
            raise ScenarioError(f"{folder}: another sweep is writing into it; give another --out")
        self._file.seek(0)
        is_whole = True
        for line in self._file:
            is_whole = line.endswith("\n")
            self._read(line)
        if not is_whole:
            self._file.write("\n")

    def add(self, result: Result) -> None:
        """Keep a result: it is in the file when this returns."""
        line: dict[str, Any] = {"key": result.key, "status": result.status}
        line |= {"core_s": round(result.core_s, 6)}
        line |= {"error": result.error} if result.error is not None else {"row": result.row}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        # last, so that an interrupted call never knows a result that is not in the file
        self.known[result.key] = result

    def forget_failed(self) -> None:
        """Forget failed runs, so that they are done again."""
        self.known = {key: one for key, one in self.known.items() if one.status == "done"}

    def close(self) -> None:
        """Close the file, so that other processes may write it."""
        self._file.close()

    def _read(self, line: str) -> None:
        try:
            found = Result(**json.loads(line))
        except (ValueError, TypeError):
            return  # incomplete, or from another version
        if found.status == "lost":
            self.known.pop(found.key, None)
        else:
            self.known[found.key] = found


def _locked(file: IO[str]) -> bool:
    """Lock the file, because two sweeps in one folder would overwrite each other's table."""
    try:
        import fcntl
    except ImportError:  # no file locks on this system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


TABLE_FILE = "sweep.parquet"


def sweep_table(grid: Grid, known: Mapping[str, Result]) -> pd.DataFrame:
    """Return rows in order of points and seeds, for points that have a result and refused ones.

    Columns are ``point``, the axes by field, ``seed``, ``status`` (done, failed, lost, refused),
    ``error``, ``key``, then those of `row_of`. Equal results give equal tables, wherever and in
    whatever order they were computed.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    figures: dict[str, None] = {}
    for one in grid.combinations:
        if one.refused is not None:
            head = {"point": one.index, **one.cells}
            rows.append({**head, "status": "refused", "error": one.refused})
        for point in one.points:
            result = known.get(point.address)
            if result is None:
                continue
            of_run = {"seed": point.seed, "status": result.status, "error": result.error}
            figures |= dict.fromkeys(result.row)
            # If an axis and a figure share a name, the axis wins.
            rows.append({**result.row, **point.labels, **of_run, "key": point.address})
    axes = [axis.key for axis in grid.axes]
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
    """Write sweep.parquet atomically. Raises `ScenarioError` if it cannot be written."""
    path, part = folder / TABLE_FILE, folder / f".{TABLE_FILE}.part"
    try:
        frame.to_parquet(part, index=False)
        part.replace(path)
    except OSError as error:
        raise ScenarioError(f"cannot write {path}: {error.strerror}") from None
    return path


def _column(values: list[Any]) -> pd.Series[Any]:
    """Return a column of numbers or truth values if all are, else of text; null stays missing."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and None not in values:
        return pd.Series(values, dtype="int64")
    if kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    return pd.Series([None if v is None else str(v) for v in values], dtype="string")
