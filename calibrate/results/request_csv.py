"""Read requests from a plain CSV, one per row, with columns known by name, in any order:

- ``arrival_s`` or ``send_s``: when it arrived at the server, or was sent; from any origin;
- ``first_s``, ``finish_s``: when its first and its last token came, on the same clock;
- ``ttft_s`` or ``ttft_ms``, ``e2e_s`` or ``e2e_ms``: latencies since then;
- ``tpot_s`` or ``tpot_ms``: (last - first)/(tokens - 1);
- ``prompt_tokens``, ``output_tokens``: whole numbers;
- ``error`` (empty for success), ``success`` (true or false): failed requests are left out.

Other well-known names of these are taken for them, and a note says so: ``timestamp`` (a date, or a
number since 1970), ``completion_tokens``, ``time_to_first_token (ms)``, ``latency``. At least one
latency is needed, or the times from which one is computed; missing columns are computed where
possible. An empty cell is an unknown value. Other columns are ignored, and a note says so.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.results.run import MeasuredRun, tpot_of
from calibrate.results.values import printable, text_number
from sim.arrays import Float64
from sim.errors import TraceError, shown
from workloads.readers.cells import time_parser
from workloads.readers.columns import find_columns

_STARTS, _ENDS = ("arrival_s", "send_s"), ("first_s", "finish_s")
_TOKENS = ("prompt_tokens", "output_tokens")
_LATENCIES = ("ttft", "tpot", "e2e")
_LATENCY_COLUMNS = tuple(f"{name}_{unit}" for name in _LATENCIES for unit in ("s", "ms"))
_NUMBERS = (*_STARTS, *_ENDS, *_TOKENS, *_LATENCY_COLUMNS)
_OUTCOMES = ("error", "success")
_SPELLED = {
    "ttft": "ttft timetofirsttoken firsttokenlatency firsttokentime",
    "tpot": "tpot timeperoutputtoken meanitl",
    "e2e": "e2e e2elatency e2el latency requestlatency responsetime duration totaltime elapsed "
    "endtoendlatency totallatency",
}
_LATENCY_OF = {name: metric for metric, names in _SPELLED.items() for name in names.split()}
_UNIT = re.compile(r"^(.+?)[_ (\[]+(s|ms|sec|secs|seconds|milliseconds)[)\]]?$", re.IGNORECASE)
_SUCCESS = {"": True, "true": True, "1": True, "false": False, "0": False}

Columns = dict[str, Float64]


def looks_like_request_csv(header: str) -> bool:
    """Return whether a first line names a latency, or the times from which one is computed."""
    names = set(_known_names(_names(header.split(","))).values())
    has_times = bool(names & set(_STARTS)) and bool(names & set(_ENDS))
    return has_times or bool(names & set(_LATENCY_COLUMNS))


def read_request_csv(text: str, path: Path) -> list[MeasuredRun]:
    """Read the single run of a file. Raises `TraceError` naming file, line and column."""
    header = _header(text, path)
    known = _known_names(header)
    columns, failed = _columns(text, path, header, known)
    start_name = next((name for name in _STARTS if name in columns), None)
    start_s = None if start_name is None else columns[start_name]
    ttft_s = _latency(columns, "ttft", "first_s", start_s)
    e2e_s = _latency(columns, "e2e", "finish_s", start_s)
    tpot_s, tokens = _latency(columns, "tpot", None, None), columns.get("output_tokens")
    if tpot_s is None and tokens is not None and ttft_s is not None and e2e_s is not None:
        tpot_s = tpot_of(ttft_s, e2e_s, tokens)
    notes = []
    taken = [f"{name} as {other}" for name, other in known.items() if name != other]
    if taken:
        notes.append(f"columns taken: {printable(', '.join(taken))}")
    ignored = [name for name in header if name not in known]
    if ignored:
        notes.append(f"columns ignored: {printable(', '.join(ignored))}")
    if start_name is None:
        notes.append("the file has no arrival_s or send_s: latencies are taken to be from send")
    return [
        MeasuredRun(
            name=printable(path.name.partition(".")[0]),
            tool="CSV of requests",
            latency_from="arrival" if start_name == "arrival_s" else "send",
            arrival_s=start_s,
            prompt_tokens=columns.get("prompt_tokens"),
            output_tokens=tokens,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2e_s=e2e_s,
            duration_s=_duration_s(start_s, e2e_s),
            completed=len(next(iter(columns.values()))),
            failed=failed,
            notes=tuple(notes),
        )
    ]


def _known_names(header: list[str]) -> dict[str, str]:
    """Return by a file's column the name that it stands for; ours win over others'."""
    known = {name: name for name in header if name in (*_NUMBERS, *_OUTCOMES)}
    found = find_columns(header)
    arrival = None if found is None else found.arrival
    others = {} if found is None else {found.input: _TOKENS[0], found.output: _TOKENS[1]}
    if arrival is not None and not set(_STARTS) & set(known):
        others[arrival] = "arrival_s"
    for name in header:
        unit = _UNIT.match(name)
        plain = re.sub(r"[^a-z0-9]", "", (name if unit is None else unit[1]).lower())
        if plain in _LATENCY_OF:
            is_ms = unit is not None and unit[2].lower().startswith("m")
            others.setdefault(name, f"{_LATENCY_OF[plain]}_{'ms' if is_ms else 's'}")
    for name, other in others.items():
        metric = other.rpartition("_")[0]
        if name not in known and not {other, f"{metric}_s", f"{metric}_ms"} & set(known.values()):
            known[name] = other
    return known


def _names(cells: list[str]) -> list[str]:
    return [cell.strip(' "\r\n\t') for cell in cells]


def _header(text: str, path: Path) -> list[str]:
    line = text.split("\n", 1)[0]
    header = _names(line.split(","))
    if not looks_like_request_csv(line):
        raise TraceError(
            f"{path}, line 1: no latency in {shown(line.strip())}; expected a column among "
            f"{', '.join(_LATENCY_COLUMNS)}, or first_s or finish_s beside arrival_s or send_s"
        )
    twice = [name for name in header if header.count(name) > 1]
    twice += [f"{name}_ms" for name in _LATENCIES if {f"{name}_s", f"{name}_ms"} <= set(header)]
    if twice:
        raise TraceError(f"{path}, line 1: {shown(twice[0])} is there twice; expected it once")
    return header


def _columns(
    text: str, path: Path, header: list[str], known: dict[str, str]
) -> tuple[Columns, int]:
    """Return the columns of the successful requests, in seconds and tokens, and the number of
    failed ones."""
    found: dict[str, list[float]] = {name: [] for name in header if known.get(name) in _NUMBERS}
    moments: dict[str, Callable[[Any], int]] = {}
    reader = csv.reader(io.StringIO(text, newline=""))
    failed = 0
    try:
        next(reader)
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{path}, line {reader.line_num}"
            if len(row) != len(header):
                raise TraceError(f"{where}: {len(row)} fields; expected {len(header)}")
            cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
            success = _SUCCESS.get(cells.get("success", "").lower())
            if success is None:
                raise TraceError(
                    f"{where}: success is {shown(cells['success'])}; expected true or false"
                )
            if cells.get("error") or not success:
                failed += 1
                continue
            for name, values in found.items():
                if known[name] != name and known[name] == "arrival_s":
                    values.append(_moment_s(where, name, cells[name], moments))
                else:
                    values.append(_cell(where, name, known[name], cells[name]))
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: {error}") from None
    if not failed and not next(iter(found.values())):
        raise TraceError(f"{path}: no rows after the header; expected a request a row")
    arrays = {known[name]: np.array(values, np.float64) for name, values in found.items()}
    return arrays, failed


def _moment_s(where: str, name: str, text: str, moments: dict[str, Callable[[Any], int]]) -> float:
    """Return seconds of a time in any form, since the first one, which decides the form."""
    if not text:
        return float("nan")
    try:
        if name not in moments:
            parse, _ = time_parser(text, name, None)
            first_ns = parse(text)
            moments[name] = lambda text: parse(text) - first_ns
        return moments[name](text) / 1e9
    except (ValueError, OverflowError):
        raise TraceError(f"{where}: {name} is {shown(text)}; expected a time") from None


def _cell(where: str, written: str, name: str, text: str) -> float:
    if not text:
        return float("nan")
    value = text_number(text)
    kind = "whole number" if name in _TOKENS else "number"
    if value is None or (name in _TOKENS and not value.is_integer()):
        raise TraceError(f"{where}: {written} is {shown(text)}; expected a {kind}, 0 or more")
    return value / 1e3 if name.endswith("_ms") else value


def _latency(
    columns: Columns, metric: str, end_name: str | None, start_s: Float64 | None
) -> Float64 | None:
    """Return the column of a metric in either unit, else the time from the start to
    ``end_name``."""
    for name in (f"{metric}_s", f"{metric}_ms"):
        if name in columns:
            return columns[name]
    if end_name not in columns or start_s is None:
        return None
    return np.maximum(columns[end_name] - start_s, 0.0)


def _duration_s(start_s: Float64 | None, e2e_s: Float64 | None) -> float | None:
    """Return the time from the first start to the last finish; None if some are unknown."""
    if start_s is None or e2e_s is None or not len(start_s):
        return None
    ends_s = start_s + e2e_s
    return None if np.isnan(ends_s).any() else float(ends_s.max() - start_s.min())
