"""Read requests from a plain CSV, one per row, with columns known by name, in any order:

- ``arrival_s`` or ``send_s``: when it arrived at the server, or was sent; from any origin;
- ``first_s``, ``finish_s``: when its first and its last token came, on the same clock;
- ``ttft_s`` or ``ttft_ms``, ``e2e_s`` or ``e2e_ms``: latencies since then;
- ``tpot_s`` or ``tpot_ms``: (last - first)/(tokens - 1);
- ``prompt_tokens``, ``output_tokens``: whole numbers;
- ``error`` (empty for success), ``success`` (true or false): failed requests are left out.

At least one latency is needed, or the times from which one is computed; missing columns are
computed where possible. An empty cell is an unknown value. Other columns are ignored, and a note
says so.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from calibrate.results.run import MeasuredRun, tpot_of
from calibrate.results.values import printable, text_number
from sim.arrays import Float64
from sim.errors import TraceError, shown

_STARTS, _ENDS = ("arrival_s", "send_s"), ("first_s", "finish_s")
_TOKENS = ("prompt_tokens", "output_tokens")
_LATENCIES = ("ttft", "tpot", "e2e")
_LATENCY_COLUMNS = tuple(f"{name}_{unit}" for name in _LATENCIES for unit in ("s", "ms"))
_NUMBERS = (*_STARTS, *_ENDS, *_TOKENS, *_LATENCY_COLUMNS)
_OUTCOMES = ("error", "success")
_SUCCESS = {"": True, "true": True, "1": True, "false": False, "0": False}

Columns = dict[str, Float64]


def looks_like_request_csv(header: str) -> bool:
    """Return whether a first line names a latency, or the times from which one is computed."""
    names = set(_names(header.split(",")))
    has_times = bool(names & set(_STARTS)) and bool(names & set(_ENDS))
    return has_times or bool(names & set(_LATENCY_COLUMNS))


def read_request_csv(text: str, path: Path) -> list[MeasuredRun]:
    """Read the single run of a file. Raises `TraceError` naming file, line and column."""
    header = _header(text, path)
    columns, failed = _columns(text, path, header)
    start_name = next((name for name in _STARTS if name in columns), None)
    start_s = None if start_name is None else columns[start_name]
    ttft_s = _latency(columns, "ttft", "first_s", start_s)
    e2e_s = _latency(columns, "e2e", "finish_s", start_s)
    tpot_s, tokens = _latency(columns, "tpot", None, None), columns.get("output_tokens")
    if tpot_s is None and tokens is not None and ttft_s is not None and e2e_s is not None:
        tpot_s = tpot_of(ttft_s, e2e_s, tokens)
    notes = []
    ignored = [name for name in header if name not in (*_NUMBERS, *_OUTCOMES)]
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


def _columns(text: str, path: Path, header: list[str]) -> tuple[Columns, int]:
    """Return the columns of the successful requests, in seconds and tokens, and the number of
    failed ones."""
    found: dict[str, list[float]] = {name: [] for name in header if name in _NUMBERS}
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
                values.append(_cell(where, name, cells[name]))
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: {error}") from None
    if not failed and not next(iter(found.values())):
        raise TraceError(f"{path}: no rows after the header; expected a request a row")
    return {name: np.array(values, np.float64) for name, values in found.items()}, failed


def _cell(where: str, name: str, text: str) -> float:
    if not text:
        return float("nan")
    value = text_number(text)
    kind = "whole number" if name in _TOKENS else "number"
    if value is None or (name in _TOKENS and not value.is_integer()):
        raise TraceError(f"{where}: {name} is {shown(text)}; expected a {kind}, 0 or more")
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
