"""Read a result folder: the summary, the tables of requests and steps, the resolved scenario."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.schemas import RESULT
from sim.accounts import ADAPTERS, TIME_ACCOUNTS
from sim.errors import ScenarioError
from sim.paths import file_sha256

if TYPE_CHECKING:
    import pandas as pd


REQUEST_COLUMNS = (
    "request",
    "replica",
    "status",
    "reject_reason",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "queue_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "good",
    *(f"{account}_ns" for account in TIME_ACCOUNTS),
)
_ADDED_LATER = {f"{ADAPTERS}_ns"}
"""Columns of accounts that folders of older versions lack, because nothing was posted to them."""
STEP_COLUMNS = (
    "replica",
    "plan_s",
    "gpu_end_s",
    "steps",
    "gpu_s",
    "decode_seqs",
    "decode_context_tokens",
    "prefill_seqs",
    "prefill_tokens",
    "prefill_context_tokens",
    "prefill_pairs",
    "logits",
    "running",
    "waiting",
    "free_blocks",
    "preempted",
)


def read_summary(folder: Path | str) -> dict[str, Any]:
    """Read ``summary.json``.

    Raises `ScenarioError` if the folder or the file is missing, is not JSON, or has another schema.
    """
    path = _existing(folder, "summary.json")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(
            f"{path}: not valid JSON ({error}). Was the run cut off? Run the scenario again."
        ) from error
    if not isinstance(summary, dict):
        raise ScenarioError(f"{path}: expected an object with a 'schema' key, not a list or value.")
    schema = summary.get("schema")
    if schema != RESULT:
        found = f"schema {schema!r}" if schema is not None else "no 'schema' key"
        writer = summary.get("fleetcast_version")
        written = f" (written by fleetcast {writer})" if writer else ""
        raise ScenarioError(
            f"{path}: {found}{written}; this version reads {RESULT!r}. "
            "Run the scenario again with this version."
        )
    figures = summary.get("figures", [])
    if not isinstance(figures, list) or not all(
        isinstance(figure, dict) and isinstance(figure.get("name"), str) for figure in figures
    ):
        raise ScenarioError(f"{path}: 'figures' must be a list of objects, each with a 'name'.")
    _check_files(path, summary.get("files"))
    return summary


def _check_files(path: Path, hashes: Any) -> None:
    """Raise `ScenarioError` if a file beside a summary is not the one that was written with it."""
    for name, known in hashes.items() if isinstance(hashes, dict) else ():
        beside = path.with_name(Path(name).name)
        if not beside.is_file():
            continue  # whoever needs it says that it is missing
        if file_sha256(beside) != known:
            raise ScenarioError(
                f"{beside}: changed since {path.name} was written, or of another run. Run the "
                "scenario again."
            )


def read_content(folder: Path | str, tool: str, schema: str, noun: str) -> dict[str, Any]:
    """Read the result of a tool from its JSON file, such as ``capacity.json``.

    ``noun`` names what the file holds. Raises `ScenarioError` if the file is missing, is not JSON,
    or has another schema.
    """
    path = Path(folder) / f"{tool}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: no readable {noun} ({error})") from None
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise ScenarioError(f"{path}: not of schema {schema!r}; run `fleetcast {tool}` again")
    return content


@contextmanager
def incomplete(folder: Path | str, tool: str) -> Iterator[None]:
    """Turn a missing key of a tool's JSON file into a `ScenarioError`."""
    try:
        yield
    except KeyError as error:
        path = Path(folder) / f"{tool}.json"
        raise ScenarioError(f"{path}: lacks {error}; run `fleetcast {tool}` again") from None


def read_requests(folder: Path | str) -> pd.DataFrame:
    """Read ``requests.parquet``: one row per request, with at least the columns
    ``REQUEST_COLUMNS``.

    Times are seconds; the time of an event that did not happen is NaN. Accounts are integer
    nanoseconds. Raises `ScenarioError` if the file is missing, unreadable, or lacks columns.
    """
    return _read_table(folder, "requests.parquet", REQUEST_COLUMNS)


def read_steps(folder: Path | str) -> pd.DataFrame:
    """Read ``steps.parquet``: one row per run of equal steps, with at least the columns
    ``STEP_COLUMNS``.

    Raises `ScenarioError` if the file is missing, unreadable, or lacks columns.
    """
    return _read_table(folder, "steps.parquet", STEP_COLUMNS)


def read_step_times(folder: Path | str) -> pd.DataFrame:
    """Read ``step_times.parquet``: one row per step, with the time in ns at which its outputs
    became visible.

    Raises `ScenarioError` if the file is missing, unreadable, or lacks columns.
    """
    return _read_table(folder, "step_times.parquet", ("replica", "visible_ns"))


def read_preemptions(folder: Path | str) -> pd.DataFrame | None:
    """Read ``preemptions.parquet``: one row per time a request lost its blocks; times are seconds.

    Returns None if an older version wrote the folder without the file. Raises `ScenarioError` if
    the file is unreadable or lacks columns.
    """
    if not (Path(folder) / "preemptions.parquet").exists():
        return None
    columns = ("request", "replica", "start_s", "end_s")
    return _read_table(folder, "preemptions.parquet", columns)


def read_scenario(folder: Path | str) -> str:
    """Read the text of the resolved ``scenario.yaml``.

    Raises `ScenarioError` if the file is missing.
    """
    return _existing(folder, "scenario.yaml").read_text(encoding="utf-8")


def _existing(folder: Path | str, name: str) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        raise ScenarioError(
            f"{folder}: no such folder. Give the result folder of a run: the one with summary.json."
        )
    path = folder / name
    if not path.is_file():
        raise ScenarioError(
            f"{path}: missing. A result folder holds summary.json, requests.parquet, "
            "steps.parquet, step_times.parquet and scenario.yaml; run the scenario again to "
            "write all of them."
        )
    return path


def _read_table(folder: Path | str, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    path = _existing(folder, name)
    try:
        table = pd.read_parquet(path, engine="pyarrow")
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ScenarioError(
            f"{path}: not a readable Parquet file ({reason}). Run the scenario again."
        ) from error
    for column in columns:
        if column in _ADDED_LATER and column not in table.columns:
            table[column] = 0
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ScenarioError(
            f"{path}: lacks the columns {', '.join(missing)}; {RESULT!r} has all of: "
            f"{', '.join(columns)}."
        )
    return table
