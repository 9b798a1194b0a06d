"""Rows of any CSV or JSON, and the numbers and times in their cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from pydantic_core import from_json

from sim.clock import NS_PER_S
from sim.errors import TraceError, shown
from workloads.readers.rows import MAX_TOKENS, UNITS, UNITS_NS

UNIT_SUFFIX = re.compile(
    r"^(.+?)(?:[_ (\[]+|(?<=[a-z])(?=[A-Z]))((?i:[num]?s|secs?|seconds|millis|micros|nanos))[)\]]?$"
)
"""A name and the unit at its end: ``arrival_ms``, ``startTimeMs``, ``time (s)``."""
_UNIT_OF = {
    **{unit: unit for unit in UNITS},
    **dict.fromkeys(("sec", "secs", "seconds"), "s"),
    "millis": "ms",
    "micros": "us",
    "nanos": "ns",
}
_EPOCH_FROM = {"s": 1e8, "ms": 1e11, "us": 1e14, "ns": 1e17}
"""Least number that is a time since 1970 in a unit: seconds until the year 5138, and so on."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMALS = re.compile(r"(?<=:\d\d)[.,](\d{1,9})\d*")
_DATES = (
    "%d/%b/%Y:%H:%M:%S %z",
    "%Y/%m/%d %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%m/%d/%Y %I:%M:%S %p",
    "%m/%d/%Y, %I:%M:%S %p",
    "%d.%m.%Y %H:%M:%S",
    "%b %d, %Y @ %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
    "%H:%M:%S",
)
"""Dates of web servers, spreadsheets, Kibana and C, beside those of ISO 8601."""
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_NOTHING = ("", "nan", "null", "none", "-")
_LONGEST_FIELD = 1 << 24
_DEEPEST = 3

Row = Mapping[str, Any]


def read_rows(text: TextIO, path: Path) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the column names and the rows, each with its line, of a CSV, JSON lines or a list.

    Raises TraceError for a file without rows, and for one that is no JSON though it looks so.
    """
    first, number = "", 0
    for number, first in enumerate(text, 1):  # noqa: B007 (the last ones are used)
        if not first.isspace():
            break
    start = first.lstrip()[:1]
    if start == "{" and _object(first) is not None:
        rows = _json_lines(chain([(number, first)], enumerate(text, number + 1)))
    elif start in ("[", "{") and start:
        rows = enumerate(_listed(first + text.read(), path), 1)
    else:
        return _csv_rows(first, number, text)
    one = next(rows, None)
    if one is None:
        raise TraceError(f"{path}: the file is empty; expected a request a row")
    return list(one[1]), chain([one], rows)


def _csv_rows(
    header: str, number: int, text: TextIO
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    mark = max(",;\t|", key=header.count)
    csv.field_size_limit(_LONGEST_FIELD)
    names = [name.strip() for name in next(csv.reader([header], delimiter=mark), [])]

    def rows() -> Iterator[tuple[int, Row]]:
        reader = csv.reader(text, delimiter=mark)
        with suppress(StopIteration):
            while True:
                try:
                    cells = next(reader)
                except csv.Error as error:
                    yield number + reader.line_num, {"": TraceError(f"not CSV ({error})")}
                    continue
                if cells:
                    line = number + reader.line_num
                    yield line, dict(zip(names, (cell.strip() for cell in cells), strict=False))

    return names, rows()


def _json_lines(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    for number, line in lines:
        if not line.isspace():
            found = _object(line)
            yield number, _flat(found) if found is not None else {"": TraceError("not JSON")}


def _listed(text: str, path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON list, also of one inside an object."""
    try:
        found = from_json(text)
    except ValueError as error:
        raise TraceError(f"{path}: not JSON ({error})") from None
    if isinstance(found, dict):
        lists = (value for value in found.values() if isinstance(value, list) and value)
        found = next((value for value in lists if isinstance(value[0], dict)), [])
    for item in found if isinstance(found, list) else ():
        if isinstance(item, dict):
            yield _flat(item)


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _flat(values: Mapping[str, Any], path: str = "", depth: int = _DEEPEST) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and depth > 1:
            out |= _flat(value, f"{path}{key}.", depth - 1)
        else:
            out[f"{path}{key}"] = value
    return out


def is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing, in any way of saying so."""
    return value is None or (
        isinstance(value, str) and value.lower() in ("", "nan", "null", "none")
    )


def tokens(value: Any, name: str, minimum: int) -> int:
    """Return a number of tokens, also one written as a decimal. Raises TraceError."""
    if isinstance(value, str) and _THOUSANDS.fullmatch(value):
        value = value.replace(",", "")
    number = _as_number(value)
    if number is None or number != int(number) or not minimum <= number <= MAX_TOKENS:
        raise TraceError(
            f"{name} is {shown(value)}; expected a whole number from {minimum} to {MAX_TOKENS}"
        )
    return int(number)


def _as_number(value: Any) -> float | int | None:
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
        with suppress(ValueError):
            number = float(value)
            if number - number == 0 and "_" not in value:
                return number
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value - value == 0 else None


def time_parser(value: Any, name: str, unit: str | None) -> tuple[Callable[[Any], int], str]:
    """Return what parses a column's times into nanoseconds, and what they are in words.

    ``value`` is its first time, ``unit`` that of numbers; None: by the column's name, or by their
    size. The parser raises ValueError or OverflowError.
    """
    if _as_number(value) is None:
        return _date_ns, "dates, UTC where they name no zone"
    found, words = _unit(float(_as_number(value) or 0), name, unit)
    return _number_ns(found), words


def _unit(number: float, name: str, given: str | None) -> tuple[str, str]:
    suffix = UNIT_SUFFIX.match(name.rpartition(".")[2])
    unit = given or (_UNIT_OF[suffix[2].lower()] if suffix is not None else None)
    if unit is not None:
        return unit, UNITS[unit]
    for unit, least in reversed(_EPOCH_FROM.items()):
        if number >= least:
            return unit, f"{UNITS[unit]} since 1970"
    return "s", "taken as seconds; unit=ms says otherwise"


def _number_ns(unit: str) -> Callable[[Any], int]:
    unit_ns = UNITS_NS[unit]

    def parse(value: Any) -> int:
        if _as_number(value) is None:
            raise ValueError(value)
        # as a float, seconds since 1970 lose a quarter of a microsecond
        return round(Decimal(str(value)) * unit_ns)

    return parse


def _date_ns(value: Any) -> int:
    """Return nanoseconds since 1970 of a date with up to nine decimals of a second."""
    if not isinstance(value, str):
        raise ValueError(value)
    decimals = _DECIMALS.search(value)
    fraction = 0 if decimals is None else int(decimals[1].ljust(9, "0"))
    return _second(_DECIMALS.sub("", value, count=1)) * NS_PER_S + fraction


@lru_cache(maxsize=64)
def _second(text: str) -> int:
    text = re.sub(r"\s*(?:UTC|GMT|Z)$", "+00:00", text.strip())
    moment = None
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
    for form in () if moment is not None else _DATES:
        with suppress(ValueError):
            moment = datetime.strptime(text.removesuffix("+00:00"), form)
            break
    if moment is None:
        raise ValueError(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1)
