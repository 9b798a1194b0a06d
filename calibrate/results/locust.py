"""Read the statistics of Locust (``*_stats.csv``): one row a kind of request, in milliseconds.

Its response time is from sending to the last byte, E2E here. Rows that a user's script adds under
names such as TTFT or TPOT are those metrics.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from calibrate.results.run import MeasuredRun
from calibrate.results.values import printable, text_number
from sim.errors import TraceError

_COLUMNS = ("Request Count", "Average Response Time", "Requests/s")
_STATISTICS = {
    "Average Response Time": "mean",
    "50%": "p50",
    "90%": "p90",
    "95%": "p95",
    "99%": "p99",
}
_METRICS = (
    ("ttft", re.compile(r"ttft|first.?token", re.IGNORECASE)),
    ("itl", re.compile(r"\bitl\b|inter.?token", re.IGNORECASE)),
    ("tpot", re.compile(r"tpot|per.?(output.?)?token|tbt", re.IGNORECASE)),
)


def looks_like_locust(header: str) -> bool:
    """Return whether a first line is that of Locust's statistics."""
    names = next(csv.reader([header]), [])
    return all(name in names for name in _COLUMNS)


def read_locust(text: str, path: Path) -> list[MeasuredRun]:
    """Read the single run of a file. Raises `TraceError` for one without requests."""
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    summary: dict[tuple[str, str], float] = {}
    answered: dict[str, str] | None = None
    num_kinds = 0
    for row in rows:
        name = str(row.get("Name", ""))
        if name == "Aggregated" or not _number(row, "Request Count"):
            continue
        metric = next((metric for metric, pattern in _METRICS if pattern.search(name)), "e2e")
        if metric == "e2e":
            num_kinds += 1
            answered = row
        _add(summary, metric, row)
    if num_kinds > 1:  # of all kinds together
        answered = next((row for row in rows if row.get("Name") == "Aggregated"), answered)
        _add(summary, "e2e", answered or {})
    if answered is None:
        raise TraceError(f"{path}: no row has requests; expected Locust's statistics")
    rate = _number(answered, "Requests/s")
    if rate is not None:
        summary["request_throughput", "value"] = rate
    count, failed = _number(answered, "Request Count") or 0.0, _number(answered, "Failure Count")
    note = "Locust counts answers that failed among its response times"
    return [
        MeasuredRun(
            name=printable(path.name.partition(".")[0]),
            tool="Locust",
            latency_from="send",
            summary=summary,
            completed=int(count - (failed or 0.0)),
            failed=int(failed or 0),
            notes=(note,) if failed else (),
        )
    ]


def _add(summary: dict[tuple[str, str], float], metric: str, row: dict[str, str]) -> None:
    for column, statistic in _STATISTICS.items():
        value = _number(row, column)
        if value is not None:
            summary[metric, statistic] = value / 1e3


def _number(row: dict[str, str], column: str) -> float | None:
    return text_number(str(row.get(column, "")).strip())
