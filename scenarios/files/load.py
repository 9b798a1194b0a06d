"""Load and validate scenarios, and apply dotted settings to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scenarios.files.messages import explain
from scenarios.files.paths import anchor_paths
from scenarios.files.scenario_file import read_scenario_file
from scenarios.files.yaml_text import Places, parse_yaml
from scenarios.schema import Scenario
from sim.errors import ScenarioError, dotted


def load_scenario(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """Read a scenario file and apply ``a.b=value`` overrides.

    Relative paths, and policy modules, in the file are resolved against its folder. Raises
    `ScenarioError` naming file, line and field.
    """
    values, places = read_scenario_file(path)
    for override in overrides:
        apply_override(values, places, override)
    return validate(values, places)


def parse_scenario(values: Mapping[str, Any], *, where: str = "scenario") -> Scenario:
    """Validate a nested mapping. Raises `ScenarioError`, one line per error."""
    return validate(values, {(): where})


def validate(values: Mapping[str, Any], places: Places) -> Scenario:
    """Validate nested values given at ``places``. Raises `ScenarioError`, one line per error."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise ScenarioError(explain(error, places)) from None


def apply_override(values: dict[str, Any], places: Places, override: str) -> None:
    """Set the field of one ``dotted.key=YAML value``, in place. Raises `ScenarioError`."""
    where = f"--set {override}"
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ScenarioError(f"{where}: write it as key=value, e.g. --set pool.replicas=2")
    value, _ = parse_yaml(text, where)
    apply_setting(values, places, key, value, where)


def apply_setting(values: dict[str, Any], places: Places, key: str, value: Any, where: str) -> None:
    """Set a dotted field in place, making missing sections; a number is a position in a list.

    Raises `ScenarioError` if the path leads through something that is not a section or list.
    """
    path: tuple[str | int, ...] = ()
    section: Any = values
    *parents, last = key.split(".")
    for part in (*parents, last):
        step: str | int = part
        if isinstance(section, list):
            step = int(part) if part.isdecimal() else part
            if not isinstance(step, int) or step >= len(section):
                raise ScenarioError(
                    f"{where}: {dotted(path)} is a list of {len(section)}; name an item by its "
                    f"position, from 0, not by {part!r}"
                )
        elif not isinstance(section, dict):
            raise ScenarioError(
                f"{where}: {dotted(path)} is {section!r}, not a section; it has no {part!r}"
            )
        path = (*path, step)
        if len(path) <= len(parents):
            if not isinstance(section, list) and section.get(step) is None:
                section[step] = {}
                places[path] = where
            section = section[step]
    section[path[-1]] = value
    for inside in [place for place in places if place[: len(path)] == path]:
        del places[inside]
    places[path] = where


def anchored_settings(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings with relative file paths resolved against the folder."""
    anchored = {}
    for key, value in settings.items():
        nested: dict[str, Any] = {}
        parts = key.split(".")
        # a position in a list, which is not available here
        if any(part.isdecimal() for part in parts):
            anchored[key] = value
            continue
        apply_setting(nested, {}, key, value, key)
        anchor_paths(nested, folder)
        found: Any = nested
        for part in parts:
            found = found[part]
        anchored[key] = found
    return anchored
