"""Explain what is wrong with a scenario: where it was given, which field, what would be right.

Turns pydantic's errors into lines such as ``chat.yaml, line 7: slo.ttft: unknown key; did you mean
'ttft_s'?``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from scenarios.files.yaml_text import KeyPath, Places
from scenarios.schema import Scenario
from sim.errors import dotted, wrong_value


def explain(error: ValidationError, places: Places, root: type[BaseModel] = Scenario) -> str:
    """Explain each error in one line; ``root`` is the model that was read."""
    lines = []
    for item in error.errors(include_url=False):
        lines.append(f"{place_of(tuple(item['loc']), places)}: {_problem(item, root)}")
    return "\n".join(lines)


def place_of(path: KeyPath, places: Places) -> str:
    """Return where a field, or else the nearest section around it, was given."""
    return next(places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in places)


def nearest(name: str, known: Iterable[str], *, list_all: bool = True) -> str:
    """Return ``did you mean 'x'?``, or all known names if none is near."""
    known = list(known)
    near = get_close_matches(name, known, n=1) or [k for k in known if k.startswith(f"{name}_")]
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(known)}" if list_all else ""


def _problem(item: Mapping[str, Any], root: type[BaseModel]) -> str:
    kind, path, wrong = item["type"], tuple(item["loc"]), wrong_value(item)
    field = dotted(path)
    if kind == "extra_forbidden":
        hint = nearest(str(path[-1]), _section_at(path[:-1], root).model_fields)
        return f"{field}: unknown key; {hint}"
    if kind == "missing":
        return f"{field}: required, but not given"
    if kind == "invalid_key":
        return f"{dotted(path[:-1]) or 'scenario'}: keys must be names, not {path[-1]!r}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = ", ".join(_section_at(path, root).model_fields)
        field = field or "a scenario"
        wrong = wrong.replace("an object", f"a section with keys of its own ({keys})", 1)
    return f"{field}: {wrong}" if field else wrong


def _section_at(path: KeyPath, root: type[BaseModel]) -> type[BaseModel]:
    """Return the section that a path leads to, through optional sections and lists of sections."""
    section = root
    for part in path:
        if isinstance(part, str) and part in section.model_fields:
            annotation = section.model_fields[part].annotation
            for candidate in (annotation, *get_args(annotation)):
                if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                    section = candidate
    return section
