"""Read values from foreign files, checking each one. Errors name file, line and field."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sim.arrays import Float64
from sim.errors import TraceError
from workloads.readers.rows import open_text, shown

_LARGEST = 1e19
"""Largest accepted value. Nanoseconds since 1970 fit; anything larger is damage, and would
overflow in sums."""
_ROUNDING = 1e-6
"""Tools subtract clock times, so values that are only this far below zero count as zero."""
_LONGEST_TEXT = 120


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file, read field by field. Every reader raises `TraceError`.

    A field that is missing or null reads as None.
    """

    where: str
    """File, with the line if the file has one object per line."""
    values: dict[str, Any]
    prefix: str = ""
    """Path to this object within its document, such as ``metrics.``"""

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def fail(self, name: str, expected: str) -> NoReturn:
        """Raise `TraceError`, saying what the field holds and what would be right."""
        value = self.values.get(name)
        what = "is missing" if value is None else f"is {shown(value)}"
        raise TraceError(f"{self.where}: {self.prefix}{name} {what}; expected {expected}")

    def number(self, name: str) -> float | None:
        """Read a number that is at least 0."""
        value = self.values.get(name)
        if value is None:
            return None
        found = as_number(value)
        if found is None:
            self.fail(name, "a number, 0 or more")
        return found

    def count(self, name: str) -> int | None:
        """Read a whole number that is at least 0."""
        value = self.number(name)
        if value is not None and not value.is_integer():
            self.fail(name, "a whole number")
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """Read printable text; an empty text is None."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            self.fail(name, "text")
        return printable(value) if value else None

    def display(self, *names: str) -> dict[str, str | float]:
        """Return the fields that are text or numbers, for display; others are left out."""
        found: dict[str, str | float] = {}
        for name in names:
            value = self.values.get(name)
            number = as_number(value)
            if number is not None:
                found[name] = number
            elif isinstance(value, str) and value:
                found[name] = printable(value)
        return found

    def child(self, name: str) -> Fields | None:
        """Return an object within this one."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, "an object")
        return Fields(self.where, value, f"{self.prefix}{name}.")

    def items(self, name: str) -> list[Any] | None:
        """Read a list with entries of any type."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            self.fail(name, "a list")
        return value

    def children(self, name: str) -> list[Fields]:
        """Return the objects of a list, or none if the list is missing."""
        found = []
        for i, item in enumerate(self.items(name) or []):
            if not isinstance(item, dict):
                raise TraceError(
                    f"{self.where}: {self.prefix}{name}[{i}] is {shown(item)}; expected an object"
                )
            found.append(Fields(self.where, item, f"{self.prefix}{name}[{i}]."))
        return found

    def numbers(self, name: str, length: int | None = None) -> Float64 | None:
        """Read a list of non-negative numbers, with ``length`` entries if given."""
        items = self.items(name)
        if items is None:
            return None
        if length is not None and len(items) != length:
            raise TraceError(
                f"{self.where}: {self.prefix}{name} has {len(items)} entries; expected {length}, "
                "one a request"
            )
        return self._array(name, items)

    def number_lists(self, name: str, length: int) -> list[Float64] | None:
        """Read a list of lists of non-negative numbers."""
        items = self.items(name)
        if items is None:
            return None
        if len(items) != length:
            self.numbers(name, length)  # gives the number of values
        for i, item in enumerate(items):
            if not isinstance(item, list):
                raise TraceError(
                    f"{self.where}: {self.prefix}{name}[{i}] is {shown(item)}; expected a list"
                )
        return [self._array(f"{name}[{i}]", item) for i, item in enumerate(items)]

    def _array(self, name: str, items: list[Any]) -> Float64:
        found = [as_number(item) for item in items]
        if None in found:
            at = found.index(None)
            raise TraceError(
                f"{self.where}: {self.prefix}{name}[{at}] is {shown(items[at])}; expected a "
                "number, 0 or more"
            )
        return np.array(found, np.float64)


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
    return Fields(where, value)
