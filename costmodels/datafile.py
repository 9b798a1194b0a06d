"""Reads the package's YAML data files and users' JSON files; finds a row by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ScenarioError

# libyaml's loader is about ten times faster, but missing from some builds of PyYAML.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises `ScenarioError` for a file that holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(content, dict):
        raise ScenarioError(f"{path}: holds a {type(content).__name__}; expected an object")
    return content
