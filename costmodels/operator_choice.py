"""The sources of kernel times that a scenario names, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from costmodels.operator_tables.families import PRICED
from sim.errors import ScenarioError

FITTED, DATASHEET, AIC, OURS = "fitted", "datasheet", "aic", "ours"
DEFAULT = "default"

Choice = str | Mapping[str, str]
"""One source for all operators, or one by family, with a ``default``."""


def _is_path(source: str) -> bool:
    """Whether a source is a folder or files of the user's, not a name."""
    return source not in (FITTED, DATASHEET, AIC, OURS) and not source.startswith(f"{AIC}:")


def parsed(choice: Choice) -> tuple[str, dict[str, str]]:
    """The default source, and those of families by name.

    Raises `ScenarioError` for an unknown family, and for what cannot be a source.
    """
    named = {DEFAULT: choice} if isinstance(choice, str) else dict(choice)
    default = named.pop(DEFAULT, FITTED)
    for family in named:
        if family not in PRICED:
            raise ScenarioError(
                f"engine.operators: {family!r} is no family of a step's operators; they are "
                f"{DEFAULT}, {', '.join(PRICED)}"
            )
    for source in (default, *named.values()):
        _check_source(source)
    return default, named


def _check_source(source: str) -> None:
    if not _is_path(source) or Path(source).is_dir():
        return
    if not all(part.strip().endswith(".parquet") for part in source.split(",")):
        raise ScenarioError(
            f"operators {source!r} is neither {FITTED}, {DATASHEET}, {OURS} nor {AIC}, nor a "
            "folder of tables, nor table files (.parquet, separated by commas)"
        )
