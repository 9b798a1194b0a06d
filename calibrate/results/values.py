"""Read values from foreign files, checking each one. Errors name file, line and field."""

from __future__ import annotations

import json
import math
from collections.abc import Sized
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter

from costmodels.fields import TEXT, Fields, MustBe
from sim.arrays import Float64
from sim.errors import TraceError, shown
from workloads.readers.rows import open_text

_LARGEST = 1e19
"""Largest accepted value. Nanoseconds since 1970 fit; anything larger is damage, and would
overflow in sums."""
_ROUNDING = 1e-6
"""Tools subtract clock times, so values that are only this far below zero count as zero."""
_LONGEST_TEXT = 120


Number = Annotated[
    float,
    Field(strict=True, ge=-_ROUNDING, le=_LARGEST, allow_inf_nan=False),
    MustBe("a number, 0 or more"),
]
_NUMBER: TypeAdapter[float] = TypeAdapter(Number)
_NUMBERS: TypeAdapter[list[float]] = TypeAdapter(list[Number])
_NUMBER_LISTS: TypeAdapter[list[list[float]]] = TypeAdapter(list[list[Number]])


def read_number(fields: Fields, name: str) -> float | None:
    """Read a number that is at least 0; None if absent."""
    value = fields.read(_NUMBER, name)
    return None if value is None else max(value, 0.0)


def read_count(fields: Fields, name: str) -> int | None:
    """Read a whole number that is at least 0; None if absent."""
    value = read_number(fields, name)
    if value is not None and not value.is_integer():
        fields.fail(name, "a whole number")
    return None if value is None else int(value)


def printable_text(fields: Fields, name: str) -> str | None:
    """Read printable text; None if absent or empty."""
    value = fields.read(TEXT, name)
    return printable(value) if value else None


def displayed(fields: Fields, *names: str) -> dict[str, str | float]:
    """Return the fields that are text or numbers, for display; others are left out."""
    found: dict[str, str | float] = {}
    for name in names:
        value = fields.first(name)
        value = as_number(value) if not isinstance(value, str) else printable(value)
        if value not in (None, ""):
            found[name] = value
    return found


def read_numbers(fields: Fields, name: str, length: int | None = None) -> Float64 | None:
    """Read a list of non-negative numbers, with ``length`` entries if given; None if absent."""
    found = fields.read(_NUMBERS, name)
    if found is None:
        return None
    check_length(fields, name, found, length)
    return np.maximum(np.array(found, np.float64), 0.0)


def read_number_lists(fields: Fields, name: str, length: int) -> list[Float64] | None:
    """Read a list with ``length`` lists of non-negative numbers; None if absent."""
    found = fields.read(_NUMBER_LISTS, name)
    if found is None:
        return None
    check_length(fields, name, found, length)
    return [np.maximum(np.array(values, np.float64), 0.0) for values in found]


def check_length(fields: Fields, name: str, found: Sized, length: int | None) -> None:
    """Raise `TraceError` if a list does not have ``length`` entries; None: any number will do."""
    if length is not None and len(found) != length:
        raise fields.wrong(name, f"has {len(found)} entries; expected {length}, one a request")


def as_number(value: object) -> float | None:
    """Return a finite, non-negative number of sensible size; None for anything else."""
    if type(value) not in (int, float):
        return None
    if not -_ROUNDING <= value <= _LARGEST:  # type: ignore[operator]
        return None  # rejects NaN and infinity too
    return max(float(value), 0.0)  # type: ignore[arg-type]


def text_number(text: str) -> float | None:
    """Convert text, as in CSV, by `as_number`; None if it is not a number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return as_number(value) if math.isfinite(value) and "_" not in text else None


def printable(text: str) -> str:
    """Return text from a file in a form that is safe on a terminal: one line without control
    characters."""
    shortened = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    return "".join(c if c.isprintable() else "?" for c in shortened)


def read_text(path: Path) -> str:
    """Read a whole file, gzipped or not. Raises `TraceError` if it cannot be read or is empty."""
    with open_text(path) as file:
        text = file.read()
    if not text.strip():
        raise TraceError(f"{path}: the file is empty")
    return text


def parse_documents(text: str, path: Path) -> list[Fields]:
    """Return the objects of a JSON file: one, or one per line. Raises `TraceError` naming the
    line."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    is_one_a_line = len(lines) > 1
    if is_one_a_line:
        try:
            json.loads(lines[0][1])
        except (ValueError, RecursionError):
            is_one_a_line = False  # the document continues on the next line
    if not is_one_a_line:
        return [_document(text, str(path), 0)]
    return [_document(line, f"{path}, line {number}", number) for number, line in lines]


def _document(text: str, where: str, line: int) -> Fields:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = where if line else f"{where}, line {error.lineno}"
        raise TraceError(f"{place}: not JSON ({error.msg}); is the file cut short?") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON that can be read ({shown(str(error))})") from None
    if not isinstance(value, dict):
        raise TraceError(f"{where}: {shown(value)}; expected a JSON object")
    return Fields(value, where, raises=TraceError)
