"""CSV files into columns, with exact messages for bad rows.

Rows are read a batch at a time; only a batch with a row out of the ordinary is read row by row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from sim.clock import NS_PER_S
from sim.errors import TraceError, shown
from workloads.readers.rows import (
    MAX_SPAN_S,
    MAX_TIME_S,
    MAX_TOKENS,
    UNITS,
    UNITS_NS,
    check_span,
    open_text,
    raise_at,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATETIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_PLAIN_DATETIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}(?:\.[0-9]{1,9})?")
_NUMERIC = str.maketrans("", "", "0123456789.eE+-")


class Column(NamedTuple):
    """Name and parsers of one column."""

    name: str
    parse: Callable[[str, str], Any]
    """``parse(text, name)`` returns the value, or raises TraceError saying what is expected."""
    parse_all: Callable[[list[str]], Any]
    """Returns the values of many texts as an array, or None if any of them needs a closer look."""
    is_time: bool = False
    """Whether values are nanoseconds counted from the file's first good row; a value too far from
    it is a bad row."""


def whole(name: str, minimum: int = 0, maximum: int = MAX_TOKENS) -> Column:
    """Return a column of whole numbers from ``minimum`` to ``maximum``."""

    def parse(text: str, name: str) -> int:
        return _whole_number(_int_if_digits(text), name, minimum, maximum)

    def parse_all(texts: list[str]) -> NDArray[np.int64] | None:
        digits = "".join(texts)
        if not (digits.isascii() and digits.isdigit() and all(texts)) or max(map(len, texts)) > 18:
            return None
        values = np.array(list(map(int, texts)), np.int64)
        return values if minimum <= values.min() and values.max() <= maximum else None

    return Column(name, parse, parse_all)


def number(name: str, minimum: float, maximum: float) -> Column:
    """Return a column of numbers from ``minimum`` to ``maximum``."""

    def parse(text: str, name: str) -> float:
        value = _float(text)
        if value is None or not minimum <= value <= maximum:
            raise TraceError(
                f"{name} is {shown(text)}; expected a number from {minimum:g} to {maximum:g}"
            )
        return value

    def parse_all(texts: list[str]) -> NDArray[np.float64] | None:
        values = _floats(texts)
        is_good = values is not None and minimum <= values.min() and values.max() <= maximum
        return values if is_good else None

    return Column(name, parse, parse_all)


def time_ns(name: str, unit: str, *, is_time: bool = False) -> Column:
    """Return a column of times or durations in ``unit``, from 0 up, read as nanoseconds."""
    unit_ns = UNITS_NS[unit]
    most = (MAX_TIME_S if is_time else MAX_SPAN_S) * (NS_PER_S // unit_ns)

    def parse(text: str, name: str) -> int:
        value = _float(text)
        if value is None or not 0 <= value <= most:
            raise TraceError(f"{name} is {shown(text)}; expected {UNITS[unit]} from 0 to {most}")
        return round(value * unit_ns)

    def parse_all(texts: list[str]) -> NDArray[np.int64] | None:
        values = _floats(texts)
        if values is None or not 0 <= values.min() <= values.max() <= most:
            return None
        if values.max() * unit_ns > 2**62:
            return None
        return np.rint(values * unit_ns).astype(np.int64)

    return Column(name, parse, parse_all, is_time)


def datetime_ns(name: str) -> Column:
    """Return a column of dates with times, UTC unless an offset is given, with up to nine
    decimals."""

    def parse_all(texts: list[str]) -> NDArray[np.int64] | None:
        in_range = min(texts) >= "1970" and max(texts) < "2200"  # numpy wraps far years silently
        if not in_range or not all(map(_PLAIN_DATETIME.fullmatch, texts)):
            return None
        try:
            return np.array(texts, "datetime64[ns]").view(np.int64)
        except (ValueError, OverflowError):
            return None

    return Column(name, _parse_datetime, parse_all, is_time=True)


def text(name: str, known: Sequence[str] = ()) -> Column:
    """Return a column of texts, restricted to the ``known`` ones if any are given."""

    def parse(text: str, name: str) -> str:
        if known and text not in known:
            raise TraceError(f"{name} is {shown(text)}; expected {' or '.join(known)}")
        return text

    def parse_all(texts: list[str]) -> list[str] | None:
        distinct = set(texts)
        if any(t != t.strip(' "\t') or (known and t not in known) for t in distinct):
            return None
        return texts

    return Column(name, parse, parse_all)


def _whole_number(value: object, name: str, minimum: int, maximum: int = MAX_TOKENS) -> int:
    """Return ``value`` if it is an int from ``minimum`` to ``maximum``, else raise TraceError."""
    if type(value) is int and minimum <= value <= maximum:
        return value
    raise TraceError(
        f"{name} is {shown(value)}; expected a whole number from {minimum} to {maximum}"
    )


def _int_if_digits(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _float(text: str) -> float | None:
    """Return a number, or None if the text has blanks, underscores or non-ASCII digits, or is
    nan."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and text.isascii() and "_" not in text else None


def _floats(texts: list[str]) -> NDArray[np.float64] | None:
    if "".join(texts).translate(_NUMERIC):
        return None
    try:
        return np.array(list(map(float, texts)))
    except ValueError:
        return None


def _parse_datetime(text: str, name: str) -> int:
    match = _DATETIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        second, decimals, offset = match.groups()
        # Nanoseconds are read from the digits, because datetime keeps only six of Azure's seven.
        nanoseconds = int((decimals or "").ljust(9, "0"))
        return _whole_second(second, offset or "Z") * NS_PER_S + nanoseconds
    except (ValueError, OverflowError):
        raise TraceError(
            f"{name} is {shown(text)}; expected a date and time like 2023-11-16 18:15:46.6805900"
        ) from None


@lru_cache(maxsize=16)
def _whole_second(second: str, offset: str) -> int:
    """Return seconds since 1970, cached because neighboring rows share a second."""
    moment = datetime.fromisoformat(second + ("+00:00" if offset == "Z" else offset))
    return (moment - _EPOCH) // timedelta(seconds=1)


_BATCH_CHARACTERS = 1 << 19


@dataclass(slots=True)
class CsvTable:
    """The good rows of a CSV file, by column."""

    values: dict[str, Any]
    """By column name, an int64 or float64 array, or a list of str, of ``[n]``."""
    line: NDArray[np.int64]
    """Line number ``[n]`` of each row."""
    ignored: list[str] = field(default_factory=list)
    """Names of columns in the file that were not asked for."""
    skipped_rows: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """A note that names the ignored columns, if there are any."""
        return (f"columns ignored: {', '.join(self.ignored)}",) if self.ignored else ()


def read_csv(
    path: Path,
    columns_of: Callable[[list[str]], Sequence[Column]],
    *,
    skip_bad_rows: bool,
    starts_with: str = "",
) -> CsvTable:
    """Read a CSV file, gzip or plain, whose first line is a header.

    ``columns_of`` maps the header to the columns to read, or raises TraceError saying what is
    expected. Rows that do not start with ``starts_with`` are skipped unread. A bad row raises
    TraceError with file, line and column, or is counted if ``skip_bad_rows``; a bad header or a
    damaged file always raises.
    """
    with open_text(path) as text:
        header = text.readline()
        if not header:
            raise TraceError(f"{path}: the file is empty; expected a CSV header")
        names = split_row(header)
        try:
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise TraceError(f"column {shown(repeated[0])} appears twice")
            columns = columns_of(names)
        except TraceError as error:
            raise_at(path, 1, error)
        reader = _Reader(path, names, columns, skip_bad_rows)
        reader.read(text, starts_with)
    wanted = {column.name for column in columns}
    return CsvTable(
        values=reader.values(),
        line=reader.line_numbers(),
        ignored=[name for name in names if name not in wanted],
        skipped_rows=reader.skipped_rows,
    )


def split_row(line: str) -> list[str]:
    """Return the fields of a CSV line. Fields are numbers, times and ids, so none holds a comma."""
    return [text.strip(' "\r\n\t') for text in line.split(",")]


def require(names: list[str], wanted: Sequence[str], expected: str) -> None:
    """Raise TraceError naming the wanted columns that are missing."""
    missing = [name for name in wanted if name not in names]
    if missing:
        raise TraceError(
            f"{', '.join(missing)} missing in {shown(','.join(names))}; expected {expected}"
        )


class _Reader:
    def __init__(
        self, path: Path, names: list[str], columns: Sequence[Column], skip_bad_rows: bool
    ) -> None:
        self.skipped_rows = 0
        self._path = path
        self._num_fields = len(names)
        self._columns = [(names.index(column.name), column) for column in columns]
        self._skip_bad_rows = skip_bad_rows
        self._origin_ns: int | None = None
        self._parts: list[list[Any]] = [[] for _ in columns]
        self._lines: list[NDArray[np.int64]] = []

    def read(self, text: TextIO, starts_with: str) -> None:
        next_number = 2
        while lines := text.readlines(_BATCH_CHARACTERS):
            numbers = list(range(next_number, next_number + len(lines)))
            next_number += len(lines)
            if starts_with:
                wanted = [line.startswith(starts_with) for line in lines]
                lines, numbers = list(compress(lines, wanted)), list(compress(numbers, wanted))
            if not self._read_batch(lines, numbers):
                self._read_rows(lines, numbers)

    def line_numbers(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *self._lines])

    def values(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for (_, column), parts in zip(self._columns, self._parts, strict=True):
            if all(isinstance(part, np.ndarray) for part in parts):
                out[column.name] = np.concatenate(parts) if parts else np.empty(0, np.int64)
            else:
                out[column.name] = [text for part in parts for text in part]
        return out

    def _read_batch(self, lines: list[str], numbers: list[int]) -> bool:
        """Read all rows at once, or return False and keep none if any is out of the ordinary."""
        rows = [line.rstrip("\r\n").split(",") for line in lines]
        if set(map(len, rows)) != {self._num_fields}:
            return False
        fields = list(zip(*rows, strict=True))
        batch = []
        origin_ns = self._origin_ns
        for at, column in self._columns:
            values = column.parse_all(list(fields[at]))
            if values is None:
                return False
            if column.is_time:
                origin_ns = int(values[0]) if origin_ns is None else origin_ns
                if abs(origin_ns) > 2**62:
                    return False
                values = values - origin_ns
                if np.abs(values).max() > MAX_SPAN_S * NS_PER_S:
                    return False
            batch.append(values)
        self._origin_ns = origin_ns
        self._lines.append(np.array(numbers, np.int64))
        for part, values in zip(self._parts, batch, strict=True):
            part.append(values)
        return True

    def _read_rows(self, lines: list[str], numbers: list[int]) -> None:
        rows, line_numbers = [], []
        for line_number, line in zip(numbers, lines, strict=True):
            if line.isspace():
                continue
            try:
                rows.append(self._read_row(split_row(line)))
                line_numbers.append(line_number)
            except TraceError as error:
                if not self._skip_bad_rows:
                    raise_at(self._path, line_number, error)
                self.skipped_rows += 1
        self._lines.append(np.array(line_numbers, np.int64))
        for part, values in zip(self._parts, zip(*rows, strict=True), strict=False):
            is_text = isinstance(values[0], str)
            kind = np.float64 if isinstance(values[0], float) else np.int64
            part.append(list(values) if is_text else np.array(values, kind))

    def _read_row(self, fields: list[str]) -> list[Any]:
        if len(fields) != self._num_fields:
            raise TraceError(
                f"the row has {len(fields)} fields; expected {self._num_fields} as in the header"
            )
        row = [column.parse(fields[at], column.name) for at, column in self._columns]
        origin_ns = self._origin_ns
        for at, (_, column) in enumerate(self._columns):
            if column.is_time:
                origin_ns = row[at] if origin_ns is None else origin_ns
                row[at] -= origin_ns
                check_span(row[at])
        self._origin_ns = origin_ns
        return row
