"""Reads the package's data files and users' JSON and YAML files, within bounds; finds a row by
name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ScenarioError

# libyaml's loader is about ten times faster, but missing from some builds of PyYAML.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


MOST_BYTES = 64 << 20
"""Largest text file that is read whole."""
MOST_VALUES = 1_000_000
"""Most values of a YAML document, those of an alias counted wherever it stands."""


@cache
def read_data(file_name: str) -> dict[str, Any]:
    """Return the content of ``costmodels/<file_name>``. It is cached: do not change it."""
    text = (Path(__file__).parent / file_name).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return content


def find_name(kind: str, name: str, names: Mapping[str, str]) -> str:
    """Return the canonical name that ``name`` stands for in ``names`` (any spelling -> canonical).

    Case does not matter. Raises `ScenarioError` with near matches if nothing fits.
    """
    folded = {spelling.casefold(): canonical for spelling, canonical in names.items()}
    found = folded.get(name.casefold())
    if found is not None:
        return found
    near = difflib.get_close_matches(name.casefold(), folded, n=4, cutoff=0.5)
    if near:
        hint = "did you mean " + ", ".join(dict.fromkeys(folded[match] for match in near)) + "?"
    else:
        hint = "known: " + ", ".join(sorted(set(folded.values())))
    raise ScenarioError(f"unknown {kind} {name!r}; {hint}")


def read_user_text(path: Path) -> str:
    """Return the text of a user's file. Raises `ScenarioError` if it cannot be, or is not one."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise ScenarioError(
            f"{path}: it is longer than {MOST_BYTES >> 20} MiB, which no such file is"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: it is not a text file (UTF-8)") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises `ScenarioError` for a file that holds none."""
    content = parse_json(read_user_text(path), str(path))
    if not isinstance(content, dict):
        raise ScenarioError(f"{path}: holds a {type(content).__name__}; expected an object")
    return content


def parse_json(text: str, where: str) -> Any:
    """Return the value of a JSON text. Raises `ScenarioError` with ``where`` it stands."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ScenarioError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise ScenarioError(f"{where}: nested too deeply") from None


def read_yaml_object(path: Path) -> dict[str, Any]:
    """Return the mapping in a user's YAML file. Raises `ScenarioError` for a file that holds
    none."""
    text = read_user_text(path)
    try:
        content = yaml_value(text, str(path))
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not valid YAML ({error})") from None
    if not isinstance(content, dict):
        raise ScenarioError(f"{path}: holds no fields")
    return content


def yaml_value(
    text: str, where: str, look_at: Callable[[yaml.Node], None] = lambda node: None
) -> Any:
    """Return the value of a YAML document, None of an empty one.

    ``look_at`` sees the document's nodes before its values are built. Raises `yaml.YAMLError` for
    bad syntax, and `ScenarioError` with ``where`` it stands for more values than `MOST_VALUES` and
    for values that cannot be built.
    """
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_values(node, where)
        look_at(node)
        return loader.construct_document(node)
    except RecursionError:
        raise ScenarioError(f"{where}: nested too deeply, or a part refers to itself") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # PyYAML's constructors let these through: a date of month 13, `!!bool perhaps`.
        raise ScenarioError(f"{where}: a value cannot be read: {error}") from None
    finally:
        loader.dispose()


def _check_values(node: yaml.Node, where: str) -> None:
    """Raise `ScenarioError` for a YAML document whose aliases would expand to too many values, and
    for a number in base 60."""
    sizes: dict[int, int] = {}

    def size(one: yaml.Node) -> int:
        if id(one) not in sizes:
            sizes[id(one)] = MOST_VALUES + 1  # of a part that refers to itself
            parts: list[yaml.Node] = []
            if isinstance(one, yaml.MappingNode):
                parts = [part for pair in one.value for part in pair]
            elif isinstance(one, yaml.SequenceNode):
                parts = one.value
            elif one.tag.endswith((":int", ":float")) and ":" in one.value:
                line = one.start_mark.line + 1
                raise ScenarioError(
                    f"{where}, line {line}: {one.value} is a number in base 60 to YAML; write it "
                    "in base 10, or in quotes"
                )
            sizes[id(one)] = 1 + sum(map(size, parts))
        return sizes[id(one)]

    if size(node) > MOST_VALUES:
        raise ScenarioError(
            f"{where}: its aliases stand for more than {MOST_VALUES:,} values, or a part refers "
            "to itself"
        )
