"""Write a scenario as YAML: in full as it ran, or only what was given."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from scenarios.files.paths import relocated
from scenarios.schema import Scenario
from sim.errors import ScenarioError


def dump_scenario(scenario: Scenario, folder: Path | None = None) -> str:
    """Return all fields, defaults included: what ran. Paths are relative to ``folder``, where the
    text will lie; None: absolute."""
    values = scenario.model_dump(mode="json")
    if scenario.pools:  # a pool takes what it leaves out from the scenario's own sections
        values["pools"] = scenario.model_dump(mode="json", exclude_unset=True)["pools"]
    return _yaml(relocated(values, folder))


def given_text(scenario: Scenario, *, leave_out: Collection[str] = ()) -> str:
    """Return what was given and is not empty, with absolute paths, without the fields
    ``leave_out``."""
    values = scenario.model_dump(mode="json", exclude_unset=True, exclude=set(leave_out))
    return _yaml(relocated(_without_empty(values), None))


def save_scenario(scenario: Scenario, path: Path) -> None:
    """Write only what was given, so that the file reads as if written by hand and reproduces the
    run.

    Raises `ScenarioError` if it cannot be written.
    """
    values = scenario.model_dump(mode="json", exclude_unset=True)
    try:
        path.write_text(_yaml(relocated(values, path.parent)), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--save {path}: cannot be written: {error.strerror}") from None


def _yaml(values: dict[str, object]) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without nulls and empty lists, which say no more than the default."""
    return {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None and value != []
    }
