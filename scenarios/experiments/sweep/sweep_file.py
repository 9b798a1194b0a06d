"""Read a sweep file: the scenario it starts from, and what differs between points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scenarios.files.load import anchored_settings, apply_setting
from scenarios.files.messages import nearest
from scenarios.files.paths import anchor_paths
from scenarios.files.scenario_file import read_scenario_file
from scenarios.files.yaml_text import KeyPath as Place
from scenarios.files.yaml_text import Places, parse_yaml, read_text
from scenarios.schema.sweep import RandomAxes, Span, SweepFile
from sim.errors import ScenarioError, dotted
from sim.paths import is_file

_SET_FOR_ALL = {
    "replications": "give replications beside axes",
    "bands": "a sweep runs without error bands, of the model's own error",
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep as the user gave it."""

    file: SweepFile
    text: str
    """Text of the file."""
    name: str
    places: Places
    """Where each key of the file stands, in words."""
    base: dict[str, Any]
    """The scenario of all points, as nested values that are not validated yet."""
    base_places: Places

    def place(self, *path: str | int) -> str:
        """Return where a part of the file stands."""
        return next(
            self.places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.places
        )

    def place_of_axis(self, key: str) -> str:
        """Return where an axis stands."""
        for start in (("axes",), ("random", "axes")):
            if (*start, key) in self.places:
                return self.places[*start, key]
        blocks = range(len(self.file.zipped))
        return next(self.places["zipped", n, key] for n in blocks if key in self.file.zipped[n])


def read_sweep(path: Path) -> Sweep:
    """Read a sweep from its file. Raises `ScenarioError` naming file, line and field."""
    text = read_text(path, "sweep")
    values, places = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ScenarioError(f"{path}: a sweep is a mapping: scenario: ..., axes: {{field: [...]}}")
    try:
        file = SweepFile.model_validate(values)
    except ValidationError as error:
        raise ScenarioError(_explain(error, places)) from None
    base, base_places = _base(file, path, places)
    for key, value in anchored_settings(file.set, path.parent).items():
        apply_setting(base, base_places, key, value, places["set", key])
    sweep = Sweep(
        file=_anchored(file, path.parent),
        text=text,
        name=path.stem,
        places=places,
        base=base,
        base_places=base_places,
    )
    _check_axes(sweep)
    return sweep


def _base(file: SweepFile, path: Path, places: Places) -> tuple[dict[str, Any], Places]:
    if isinstance(file.scenario, str):
        base = path.parent / file.scenario
        if not is_file(base):
            raise ScenarioError(
                f"{places['scenario',]}: scenario {file.scenario} is not a file (looked for {base})"
            )
        return read_scenario_file(base)
    anchor_paths(file.scenario, path.parent)
    inside = {place[1:]: words for place, words in places.items() if place[:1] == ("scenario",)}
    return file.scenario, inside


def _anchored(file: SweepFile, folder: Path) -> SweepFile:
    """Return the sweep with relative paths in its axes resolved against the sweep's folder."""

    def moved(axes: dict[str, Any]) -> dict[str, Any]:
        return {
            key: axis
            if isinstance(axis, Span)
            else [anchored_settings({key: value}, folder)[key] for value in axis]
            for key, axis in axes.items()
        }

    random = file.random
    if random is not None:
        random = random.model_copy(update={"axes": moved(random.axes)})
    zipped = tuple(moved(block) for block in file.zipped)
    changed = {"axes": moved(file.axes), "zipped": zipped, "random": random}
    return file.model_copy(update=changed)


def _check_axes(sweep: Sweep) -> None:
    file = sweep.file
    random: dict[str, Any] = {} if file.random is None else dict(file.random.axes)
    keys = [*file.axes, *(key for block in file.zipped for key in block), *random]
    if not keys:
        raise ScenarioError(f"{sweep.name}: no axis; give axes: {{section.key: [value, value]}}")
    for key in keys:
        where = sweep.place_of_axis(key)
        if not all(key.split(".")):
            raise ScenarioError(f"{where}: {key!r} is not a field; write section.key")
        if key in _SET_FOR_ALL:
            raise ScenarioError(f"{where}: {key} is no axis: {_SET_FOR_ALL[key]}")
        other = next((k for k in keys if k != key and f"{key}.".startswith(f"{k}.")), None)
        if other is not None or keys.count(key) > 1:
            raise ScenarioError(f"{where}: {other or key} is set by two axes")
    if "seed" in keys and (file.replications or 1) > 1:
        raise ScenarioError(
            f"{sweep.place_of_axis('seed')}: seed is an axis and replications choose seeds too; "
            "keep one of them"
        )
    for key, axis in [*file.axes.items(), *random.items()]:
        where = sweep.place_of_axis(key)
        if isinstance(axis, Span) and (axis.steps is None) != (key in random):
            what = "is drawn, it has no steps" if key in random else "needs steps, how many values"
            raise ScenarioError(f"{where}: {key} {what}")
        if isinstance(axis, list):
            _check_distinct(axis, f"{where}: {key}")
    for index, block in enumerate(file.zipped):
        lengths = {key: len(values) for key, values in block.items()}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise ScenarioError(
                f"{sweep.place('zipped', index)}: lists of a zipped block go together, so they "
                f"have one length: {told or 'it is empty'}"
            )


def _check_distinct(values: list[Any], what: str) -> None:
    seen: list[Any] = []
    for value in values:
        if any(value == other and type(value) is type(other) for other in seen):
            raise ScenarioError(f"{what}: {value!r} is there twice")
        seen.append(value)


def _explain(error: ValidationError, places: Places) -> str:
    """Explain each error in one line, as for scenarios."""
    lines: dict[str, None] = {}
    for item in error.errors(include_url=False):
        # pydantic adds the type it tried, which is not part of the file
        path: Place = tuple(
            p for p in item["loc"] if p not in ("list", "span", "str", "dict[str,any]")
        )
        where = next(places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in places)
        lines[f"{where}: {_problem(item, path)}"] = None
    return "\n".join(lines)


def _problem(item: Any, path: Place) -> str:
    field = dotted(path)
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown key; {nearest(str(path[-1]), _known(path[:-1]))}"
    if item["type"] == "missing":
        return f"{field}: required, but not given"
    if item["type"] in ("list_type", "model_type", "model_attributes_type"):
        return f"{field}: must be a list of values, or a span {{from: ..., to: ..., steps: ...}}"
    if item["type"] == "too_short":
        return f"{field}: needs at least one value"
    words = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{field}: {words}"


def _known(path: Place) -> Iterator[str]:
    section: Any = SweepFile
    if path[:1] == ("random",):
        section = RandomAxes if len(path) == 1 else Span
    elif path:
        section = Span
    for name, field in section.model_fields.items():
        yield field.alias or name
