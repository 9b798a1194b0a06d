"""Reads the package's YAML data files and finds a row by name, with near matches on a miss."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ScenarioError

# libyaml's loader is about ten times faster; it is missing from some builds of PyYAML.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def read_data(file_name: str) -> dict[str, Any]:
    """The content of ``costmodels/<file_name>``. Cached: do not change it."""
    text = Path(__file__).with_name(file_name).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return content


def find_name(kind: str, name: str, names: Mapping[str, str]) -> str:
    """The canonical name that ``name`` stands for in ``names`` (any spelling -> canonical).

    Case does not matter. Raises `ScenarioError` with near matches when nothing fits.
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
