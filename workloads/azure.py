"""Azure LLM inference traces: CSV with a time, prompt tokens and output tokens a row.

Source: Azure/AzurePublicDataset (CC-BY 4.0), Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from sim.clock import NS_PER_S
from sim.errors import TraceError
from sim.request_table import RequestTable
from workloads.rows import (
    MAX_TIME_S,
    ParsedRow,
    open_text,
    read_rows,
    shown,
    to_table,
    whole_number,
)

PUBLISHED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
REDUCED = ("t_s", "input_tokens", "output_tokens")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATETIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


def read_azure(path: Path, *, skip_bad_rows: bool = False) -> RequestTable:
    """Read an Azure CSV, gzip or plain, in either of two layouts.

    ``TIMESTAMP,ContextTokens,GeneratedTokens`` is the published one: date and time with up to nine
    decimals, UTC unless an offset is given; further columns are ignored, and a note says so.
    ``t_s,input_tokens,output_tokens`` is the reduced one: seconds; no further columns, since a
    session column would mean that ``t_s`` is not one clock. Arrivals count from the earliest row.
    Raises TraceError, naming file, line and column, for anything else; with ``skip_bad_rows`` bad
    rows are counted instead (a bad header or a damaged file still raises).
    """
    with open_text(path) as text:
        header = text.readline()
        if not header:
            raise TraceError(f"{path}: the file is empty; expected a CSV header")
        columns = split_row(header)
        try:
            layout = find_layout(columns)
        except TraceError as error:
            raise TraceError(f"{path}, line 1: {error}") from None
        rows = read_rows(
            text,
            _row_parser(columns, layout),
            path=path,
            first_line=2,
            skip_bad_rows=skip_bad_rows,
        )
    ignored = [column for column in columns if column not in layout]
    notes = (f"columns ignored: {', '.join(ignored)}",) if ignored else ()
    return to_table(rows, source=f"{path.name} (azure)", notes=notes)


def split_row(line: str) -> list[str]:
    """The fields of a CSV line. Fields are numbers and times, so none holds a comma."""
    return [text.strip(' "\r\n\t') for text in line.split(",")]


def find_layout(columns: list[str]) -> tuple[str, str, str]:
    """The names of the time, prompt and output columns. TraceError where neither layout fits."""
    expected = f"expected {','.join(PUBLISHED)} or {','.join(REDUCED)}"
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise TraceError(f"column {shown(repeated[0])} appears twice; {expected}")
    if set(PUBLISHED) <= set(columns):
        return PUBLISHED
    if set(REDUCED) == set(columns):
        return REDUCED
    nearest = PUBLISHED if set(PUBLISHED) & set(columns) else REDUCED
    missing = [name for name in nearest if name not in columns]
    fault = f"{', '.join(missing)} missing" if missing else "unexpected columns"
    raise TraceError(f"{fault} in {shown(','.join(columns))}; {expected}")


def _row_parser(columns: list[str], layout: tuple[str, str, str]) -> Callable[[str], ParsedRow]:
    time_name, prompt_name, output_name = layout
    time_at, prompt_at, output_at = (columns.index(name) for name in layout)
    parse_time = _datetime_ns if layout == PUBLISHED else _seconds_ns

    def parse(line: str) -> ParsedRow:
        fields = split_row(line)
        if len(fields) != len(columns):
            raise TraceError(
                f"the row has {len(fields)} fields; expected {len(columns)} as in the header"
            )
        return (
            parse_time(fields[time_at], time_name),
            whole_number(_int_if_digits(fields[prompt_at]), prompt_name, 1),
            whole_number(_int_if_digits(fields[output_at]), output_name, 0),
            (),
        )

    return parse


def _int_if_digits(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _seconds_ns(text: str, name: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_TIME_S or "_" in text or not text.isascii():
        raise TraceError(f"{name} is {shown(text)}; expected seconds from 0 to {MAX_TIME_S}")
    return round(seconds * NS_PER_S)


def _datetime_ns(text: str, name: str) -> int:
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
