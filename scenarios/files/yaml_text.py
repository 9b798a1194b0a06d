"""Parse YAML text into plain values, remembering on which line each key stands."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from costmodels.datafile import read_user_text, yaml_value
from sim.errors import ScenarioError, printable, shown

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top: ``("workload", "window_s", 0)``."""
Places = dict[KeyPath, str]
"""Where the user gave each field, in words; a field not listed was given with its parent."""


def parse_yaml(text: str, where: str) -> tuple[Any, Places]:
    """Return the value of a YAML document, and the place (``where``, line) of each key in it.

    Raises `ScenarioError` with file, line and the text there: for bad syntax, for a key given twice
    (YAML would silently drop the first), and for values that cannot be built.
    """
    places: Places = {(): where}
    try:
        value = yaml_value(text, where, lambda node: _note_places(node, (), where, places))
    except yaml.MarkedYAMLError as error:
        raise ScenarioError(_syntax_message(error, where)) from None
    except yaml.YAMLError:
        raise ScenarioError(f"{where}: not a text file: it has control characters") from None
    return _unshared(value, where), places


def _unshared(value: Any, where: str) -> Any:
    """Copy a value so that no part is in two places, as an anchor and its aliases would be."""
    if isinstance(value, str) and printable(value) != value:
        raise ScenarioError(f"{where}: {shown(value)} has control characters")
    if isinstance(value, dict):
        return {key: _unshared(item, where) for key, item in value.items()}
    return [_unshared(item, where) for item in value] if isinstance(value, list) else value


def _syntax_message(error: yaml.MarkedYAMLError, where: str) -> str:
    problem = error.problem or error.context or "cannot be read"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{where}: not valid YAML: {problem}"
    snippet = mark.get_snippet(indent=2, max_length=90)
    place = f"{where}, line {mark.line + 1}, column {mark.column + 1}"
    return f"{place}: not valid YAML: {problem}" + (f"\n{snippet}" if snippet else "")


def _note_places(node: yaml.Node, path: KeyPath, where: str, places: Places) -> None:
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            places[*path, position] = _line(item, where)
            _note_places(item, (*path, position), where, places)
    elif isinstance(node, yaml.MappingNode):
        first: dict[Hashable, str] = {}
        for key, value in node.value:
            name, line = key.value, _line(key, where)
            if not isinstance(name, str):
                continue  # a list or mapping as key, which the constructor refuses
            if name in first and name != "<<":
                raise ScenarioError(f"{line}: key {name!r} is given twice (also {first[name]})")
            first[name] = places[*path, name] = line
            _note_places(value, (*path, name), where, places)


def _line(node: yaml.Node, where: str) -> str:
    return f"{where}, line {node.start_mark.line + 1}"


def read_text(path: Path, what: str) -> str:
    """Return a file's text; ``what`` names it in messages. Raises `ScenarioError`."""
    try:
        return read_user_text(path)
    except ScenarioError as error:
        raise ScenarioError(f"cannot read {what} {error}") from None
