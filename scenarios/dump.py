"""A scenario as YAML: in full as it ran, or only what was given."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import yaml

from scenarios.paths import relocated
from scenarios.schema import Scenario
from sim.errors import ScenarioError


def dump_scenario(scenario: Scenario) -> str:
    """All fields, defaults included, paths absolute: what ran, readable from anywhere."""
    values = scenario.model_dump(mode="json")
    if scenario.pools:  # what a pool leaves out it has from the scenario's own sections
        values["pools"] = scenario.model_dump(mode="json", exclude_unset=True)["pools"]
    return _yaml(relocated(values, None))


def given_text(scenario: Scenario, *, leave_out: Collection[str] = ()) -> str:
    """Only what was given, paths absolute; ``leave_out``: fields that do not matter."""
    values = scenario.model_dump(mode="json", exclude_unset=True)
    return _yaml(relocated({k: v for k, v in values.items() if k not in leave_out}, None))


def save_scenario(scenario: Scenario, path: Path) -> None:
    """Write only what was given, so that it reads as if written by hand. Reproduces the run.

    Raises ScenarioError where it cannot be written.
    """
    values = scenario.model_dump(mode="json", exclude_unset=True)
    try:
        path.write_text(_yaml(relocated(values, path.parent)), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--save {path}: cannot be written: {error.strerror}") from None


def _yaml(values: dict[str, object]) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
