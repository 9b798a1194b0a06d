"""YAML, dotted overrides and dicts into a `Scenario`; errors name the field and the nearest key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError

from scenarios.schema import Scenario
from sim.errors import ScenarioError


def load_scenario(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """Read a scenario file and apply ``a.b=value`` overrides.

    Raises ScenarioError naming the file and the field. Relative trace and model paths are taken
    from the scenario's folder.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read scenario {path}: {error}") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ScenarioError(f"{path} must hold a mapping of fields, e.g. `model: ...`")
    _anchor_paths(values, path.parent)
    return parse_scenario(apply_overrides(values, overrides), where=str(path))


def parse_scenario(values: Mapping[str, Any], *, where: str = "scenario") -> Scenario:
    """Validate a nested mapping. Raises ScenarioError, one line for each thing wrong."""
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        lines = [_explain(dict(item)) for item in error.errors()]
        raise ScenarioError("\n".join(f"{where}: {line}" for line in lines)) from error


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of ``values`` with each ``dotted.key=YAML value`` set."""
    result = cast(dict[str, Any], _copy(values))
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ScenarioError(f"--set {override!r}: write it as key=value, e.g. pool.replicas=2")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ScenarioError(f"--set {override!r}: the value is not valid YAML") from error
        *parents, last = key.split(".")
        section = result
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ScenarioError(f"--set {override!r}: {parent} is not a section")
        section[last] = value
    return result


def dump_scenario(scenario: Scenario) -> str:
    """The scenario as YAML, defaults included: what ran, in full."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False)


def _copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _copy(value) for key, value in values.items()}
    return values


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Paths in a scenario file are relative to the file, wherever it is run from."""
    workload = values.get("workload")
    trace = workload.get("trace") if isinstance(workload, dict) else None
    if isinstance(trace, dict) and isinstance(trace.get("path"), str):
        trace["path"] = str(folder / trace["path"])
    model = values.get("model")
    if isinstance(model, str) and (folder / model).is_file():
        values["model"] = str(folder / model)


def _explain(error: dict[str, Any]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    kind, message = error["type"], error["msg"]
    if kind == "extra_forbidden":
        *parents, key = error["loc"]
        known = list(_section_at(parents).model_fields)
        near = get_close_matches(str(key), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return f"{path}: unknown key; {hint}"
    if kind == "missing":
        return f"{path}: required, but not given"
    message = message.removeprefix("Value error, ")
    if kind == "value_error":
        return f"{path or 'scenario'}: {message}"
    return f"{path}: {message} (found {error['input']!r})"


def _section_at(path: list[Any]) -> type[BaseModel]:
    section: type[BaseModel] = Scenario
    for part in path:
        if isinstance(part, int):
            continue
        annotation = section.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        for candidate in candidates:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                section = candidate
    return section
