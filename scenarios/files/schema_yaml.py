"""Write a scenario section as YAML lines: what is set, and the rest commented out, from the
schema."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scenarios.files.yaml_lines import EMPTY, Line, prose, scalar

_UNITS = {
    "_per_s": "a second",
    "_tokens": "tokens",
    "_bytes": "bytes",
    "_usd": "US dollars",
    "_ms": "milliseconds",
    "_ns": "nanoseconds",
    "_w": "watts",
    "_s": "seconds",
}
_NO_LIMIT = 1_000_000
"""Larger bounds only keep numbers sane, and comments leave them out."""
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def scenario_lines(
    schema: type[BaseModel], values: Mapping[str, Any], examples: Mapping[str, Any]
) -> list[Line]:
    """Return the lines of a whole file, in which each section is a paragraph with its description
    above.

    Fields in ``values`` and required fields are live; the others are commented out with their
    defaults. Fields without a default to show take a value from ``examples``, by dotted path.
    """
    paragraphs: list[list[Line]] = [[]]
    for name, field in schema.model_fields.items():
        lines = _field_lines(name, field, values.get(name, _UNSET), examples, "", name, schema)
        inner = section_of(field.annotation)
        if inner is None:
            paragraphs[-1] += lines
        else:
            about = [Line(text=text) for text in prose(f"{lines[0].comment}.")]
            paragraphs += [[*about, replace(lines[0], comment=""), *lines[1:]], []]
    return [line for lines in paragraphs if lines for line in (*lines, EMPTY)]


def section_lines(
    section: type[BaseModel],
    values: Mapping[str, Any],
    examples: Mapping[str, Any],
    *,
    indent: str,
    path: str,
    shown: Collection[str] = (),
) -> list[Line]:
    """Return the lines of every field of a section: the live ones, then the others, in its order.

    Fields that are ``shown`` in the section around are left out, unless they are in ``values``.
    """
    live: list[Line] = []
    others: list[Line] = []
    for name, field in section.model_fields.items():
        if name in shown and name not in values:
            continue
        lines = _field_lines(
            name, field, values.get(name, _UNSET), examples, indent, f"{path}.{name}", section
        )
        (live if lines[0].indent == indent else others).extend(lines)
    return live + others


_UNSET: Any = object()
"""The value of a field that was not given."""


def _field_lines(
    name: str,
    field: FieldInfo,
    value: Any,
    examples: Mapping[str, Any],
    indent: str,
    path: str,
    around: type[BaseModel],
) -> list[Line]:
    start = indent if value is not _UNSET or field.is_required() else f"{indent}# "
    if value is _UNSET:
        value = examples.get(path, _default(field))
    inner = section_of(field.annotation)
    if inner is None:
        if value is PydanticUndefined:
            value = placeholder(field)
        return [Line(start, f"{name}: {scalar(value)}", comment_of(name, field))]
    about = field.description or _doc(inner)
    if not is_list(field.annotation):
        given = value if isinstance(value, Mapping) else {}
        lines = section_lines(inner, given, examples, indent=f"{start}  ", path=path)
        return [Line(start, f"{name}:", about), *lines]
    # Items that share a base with the section around have its fields too: refer to it, do not
    # repeat.
    shared = set(inner.model_fields) & set(around.model_fields)
    if shared:
        about += f"; other fields as in {path.rpartition('.')[0] or 'the scenario'}"
    lines = [Line(start, f"{name}:", about)]
    for item in value or [{}]:
        fields = section_lines(
            inner, item, examples, indent=f"{start}    ", path=path, shown=shared
        )
        lines += [replace(fields[0], indent=f"{start}  ", text=f"- {fields[0].text}"), *fields[1:]]
    return lines


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds: directly, optionally, or in a list or mapping.

    Returns None for a section that says it stands ``on_one_line``.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if getattr(annotation, "on_one_line", False) else annotation
    found = (section_of(part) for part in get_args(annotation) if part is not annotation)
    return next((section for section in found if section is not None), None)


def is_list(annotation: Any) -> bool:
    """Return whether a field holds a list, or may hold one."""
    return get_origin(annotation) in (list, tuple) or any(
        is_list(part) for part in get_args(annotation)
    )


def comment_of(name: str, field: FieldInfo) -> str:
    """Describe what a field may be, its unit and what it does, in the words of the schema."""
    text = (field.description or "").replace("None:", "null:")
    said = set(text.replace(",", " ").replace(";", " ").replace(":", " ").split())
    choices = _choices(field.annotation)
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    parts = []
    if choices and not said.issuperset(choices):
        parts.append(" or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]])))
    if unit and unit not in said and not (unit == _UNITS["_per_s"] and text):
        parts.append(unit)
    if not text and not choices:
        parts.append(_bounds(field) or ("" if unit else _kind(field.annotation)))
    return "; ".join(filter(None, [*parts, text]))


def placeholder(field: FieldInfo) -> Any:
    """Return something valid for a required field that has no known example."""
    choices = _choices(field.annotation)
    if choices:
        return choices[0]
    low: list[Any] = [m.ge for m in _metadata(field) if isinstance(m, Ge)]
    low += [m.gt for m in _metadata(field) if isinstance(m, Gt)]
    least = low[0] if low else 0
    for kind in _plain(field.annotation):
        if kind is bool:
            return True
        if kind in (int, float):
            return least + 1
        if kind is str:
            return "name"
        if get_origin(kind) in (list, tuple):
            return []
    return None


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return default.model_dump(exclude_unset=True)
    return list(default) if isinstance(default, tuple) else default


def _doc(section: type[BaseModel]) -> str:
    paragraph = (inspect.getdoc(section) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("None is", "null is").removesuffix(".")


def _plain(annotation: Any) -> list[Any]:
    """Return the types that a field may have, without None and without what Annotated adds."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _plain(part)]
    return [] if annotation is NoneType else [annotation]


def _choices(annotation: Any) -> list[str]:
    kinds = _plain(annotation)
    return [str(c) for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]


def _kind(annotation: Any) -> str:
    return next((_KINDS[kind] for kind in _plain(annotation) if kind in _KINDS), "")


def _metadata(field: FieldInfo) -> list[Any]:
    found = list(field.metadata)

    def collect(annotation: Any) -> None:
        if get_origin(annotation) is Annotated:
            for extra in get_args(annotation)[1:]:
                found.extend(extra.metadata if isinstance(extra, FieldInfo) else [extra])
        for part in get_args(annotation):
            if get_args(part):
                collect(part)

    collect(field.annotation)
    return found


def _bounds(field: FieldInfo) -> str:
    """Return the bounds of a number in words: ``1 to 1,024``, ``above 0``."""
    marks = _metadata(field)
    low = next((f"{m.ge:,}" for m in marks if isinstance(m, Ge)), "")
    above = next((f"above {m.gt:,}" for m in marks if isinstance(m, Gt)), "")
    most: list[Any] = [m.le for m in marks if isinstance(m, Le)]
    high = next((f"{value:,}" for value in most if value < _NO_LIMIT), "")
    if low and high:
        return f"{low} to {high}"
    if above and high:
        return f"{above}, at most {high}"
    return above or (f"{low} or more" if low else f"at most {high}" if high else "")
