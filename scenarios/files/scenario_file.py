"""Read a scenario file into plain values; ``base: other.yaml`` starts from another file's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenarios.files.paths import anchor_paths
from scenarios.files.yaml_text import KeyPath as Place
from scenarios.files.yaml_text import Places, parse_yaml, read_text
from sim.errors import ScenarioError
from sim.paths import is_file

_SOURCES = ("trace", "preset", "generator", "classes")


def read_scenario_file(path: str | Path) -> tuple[dict[str, Any], Places]:
    """Return the values in a scenario file, not validated yet, and where each stands.

    With ``base`` they are those of the base file (its path starts at this file's folder), with this
    file's on top: sections are merged key by key, anything else is replaced, and a source of
    requests replaces the base's. Raises `ScenarioError` naming file and line.
    """
    return _read(Path(path), ())


def _read(path: Path, readers: tuple[Path, ...]) -> tuple[dict[str, Any], Places]:
    values, places = _own_values(path)
    if "base" not in values:
        return values, places
    base = values.pop("base")
    where = places.pop(("base",))
    if not isinstance(base, str):
        raise ScenarioError(f"{where}: base is {base!r}; expected the path of a scenario file")
    base_path = path.parent / base
    readers = (*readers, path.resolve())
    if base_path.resolve() in readers:
        raise ScenarioError(f"{where}: base {base} leads back to a file that builds on it")
    if not is_file(base_path):
        raise ScenarioError(f"{where}: base {base} is not a file (looked for {base_path})")
    below, below_places = _read(base_path, readers)
    for replaced in list(_lay_over(below, values)):
        for inside in [p for p in below_places if p[: len(replaced)] == replaced]:
            del below_places[inside]
    return below, below_places | {key: place for key, place in places.items() if key}


def _own_values(path: Path) -> tuple[dict[str, Any], Places]:
    text = read_text(path, "scenario")
    values, places = parse_yaml(text, str(path))
    if values is None:
        raise ScenarioError(f"{path} is empty; a scenario needs at least `model` and `workload`")
    if not isinstance(values, dict):
        raise ScenarioError(
            f"{path}: a scenario is a mapping of fields (`model: ...`), not a {_kind(values)}"
        )
    anchor_paths(values, path.parent)
    return values, places


def _lay_over(below: dict[str, Any], above: dict[str, Any], path: Place = ()) -> Iterator[Place]:
    """Merge ``above`` over ``below`` in place; yield the paths at which the base was replaced."""
    given = [source for source in _SOURCES if above.get(source)]
    if given and path == ("workload",):
        for source in below.keys() & (set(_SOURCES) - set(given)):
            del below[source]
            yield (*path, source)
    for key, value in above.items():
        under = below.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            yield from _lay_over(under, value, (*path, key))
        else:
            below[key] = value
            yield (*path, key)


def _kind(value: Any) -> str:
    return {list: "list", str: "piece of text", bool: "true or false"}.get(type(value), "number")
