"""Kinds of CSV columns: how a text becomes a value, one at a time and many at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.clock import NS_PER_S
from sim.errors import TraceError
from workloads.readers.rows import (
    MAX_SPAN_S,
    MAX_TIME_S,
    MAX_TOKENS,
    UNITS,
    UNITS_NS,
    shown,
    whole_number,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATETIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_PLAIN_DATETIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}(?:\.[0-9]{1,9})?")
_NUMERIC = str.maketrans("", "", "0123456789.eE+-")


class Column(NamedTuple):
    """How one column is read."""

    name: str
    parse: Callable[[str, str], Any]
    """(text, name) -> value; TraceError saying what is expected."""
    parse_all: Callable[[list[str]], Any]
    """The same of many texts at once, as an array; None where any of them needs a closer look."""
    is_time: bool = False
    """Nanoseconds, counted from the file's first good row; too far from it is a bad row."""


def whole(name: str, minimum: int = 0, maximum: int = MAX_TOKENS) -> Column:
    """A column of whole numbers."""

    def parse(text: str, name: str) -> int:
        return whole_number(_int_if_digits(text), name, minimum, maximum)

    def parse_all(texts: list[str]) -> NDArray[np.int64] | None:
        digits = "".join(texts)
        if not (digits.isascii() and digits.isdigit() and all(texts)) or max(map(len, texts)) > 18:
            return None
        values = np.array(list(map(int, texts)), np.int64)
        return values if minimum <= values.min() and values.max() <= maximum else None

    return Column(name, parse, parse_all)


def number(name: str, minimum: float, maximum: float) -> Column:
    """A column of numbers."""

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
    """A column of times or durations in ``unit``, from 0 up, as nanoseconds."""
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
    """A column of dates with times, UTC unless an offset is given, up to nine decimals."""

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
    """A column of texts; of the ``known`` ones if given."""

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


def _int_if_digits(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _float(text: str) -> float | None:
    """A number that is written as one: no blanks, underscores or other digits; not nan."""
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
        # Nanoseconds from the digits themselves: datetime keeps only six of Azure's seven.
        nanoseconds = int((decimals or "").ljust(9, "0"))
        return _whole_second(second, offset or "Z") * NS_PER_S + nanoseconds
    except (ValueError, OverflowError):
        raise TraceError(
            f"{name} is {shown(text)}; expected a date and time like 2023-11-16 18:15:46.6805900"
        ) from None


@lru_cache(maxsize=16)
def _whole_second(second: str, offset: str) -> int:
    """Seconds since 1970, remembered because neighbouring rows share a second."""
    moment = datetime.fromisoformat(second + ("+00:00" if offset == "Z" else offset))
    return (moment - _EPOCH) // timedelta(seconds=1)
