"""Read a plan file into a validated question and the values of its scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scenarios.files.messages import explain
from scenarios.files.paths import anchor_paths
from scenarios.files.scenario_file import read_scenario_file
from scenarios.files.yaml_text import Places, parse_yaml, read_text
from scenarios.schema.plan import PlanFile
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A plan file that was read."""

    plan: PlanFile
    values: dict[str, Any]
    """Values of the scenario that all candidates share, not validated yet."""
    places: Places
    """Where each of the values was given."""
    text: str


def read_plan(path: Path) -> Asked:
    """Read a plan file. Raises `ScenarioError` naming file, line and field."""
    text = read_text(path, "plan")
    values, places = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ScenarioError(f"{path}: a plan is a mapping with scenario, targets and gpus")
    return asked(values, places, folder=path.parent, text=text)


def asked(values: dict[str, Any], places: Places, *, folder: Path, text: str = "") -> Asked:
    """Read a plan from values in memory; relative paths start at ``folder``.

    Raises `ScenarioError` naming place and field.
    """
    try:
        plan = PlanFile.model_validate(values)
    except ValidationError as error:
        raise ScenarioError(explain(error, places, PlanFile)) from None
    if isinstance(plan.scenario, str):
        scenario, where = read_scenario_file(folder / plan.scenario)
        return Asked(plan=plan, values=scenario, places=where, text=text)
    scenario = values["scenario"]
    if "base" in scenario:
        raise ScenarioError(
            f"{places.get(('scenario', 'base'), places[()])}: scenario.base is for scenario files; "
            "give the file as `scenario: FILE`, and what differs as options with one value each"
        )
    anchor_paths(scenario, folder)
    inner = {key[1:]: place for key, place in places.items() if key[:1] == ("scenario",)}
    return Asked(plan=plan, values=scenario, places={(): places[()]} | inner, text=text)
