"""Read the folder of a sweep: sweep.json and sweep.parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.schemas import SWEEP
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

FILE = "sweep.json"

Content = dict[str, Any]
"""Content of sweep.json."""


def is_sweep(folder: Path | str) -> bool:
    """Return whether a folder holds a sweep."""
    return (Path(folder) / FILE).is_file()


def read_sweep(folder: Path | str) -> tuple[Content, pd.DataFrame]:
    """Read sweep.json and the table. Raises `ScenarioError` if one is missing or has another
    schema."""
    import pandas as pd

    path = Path(folder) / FILE
    again = "Run `fleetcast sweep` again."
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        table = pd.read_parquet(path.with_suffix(".parquet"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: no readable sweep ({error}). {again}") from None
    if not isinstance(content, dict) or content.get("schema") != SWEEP:
        raise ScenarioError(f"{path}: not of schema {SWEEP!r}. {again}")
    return content, table


def read_text(folder: Path | str, name: str) -> str:
    """Read a text file of the folder. Raises `ScenarioError` if it is missing."""
    try:
        return (Path(folder) / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{Path(folder) / name}: cannot be read ({error})") from None
