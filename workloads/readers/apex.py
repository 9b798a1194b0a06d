"""APEX workloads: JSON lines with a start offset and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRows, Row, need
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_TIME_S, duration_ns, whole_number

KEYS = ("StartTimeOffset", "ContextTokens", "GeneratedTokens")


def read_apex(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read APEX JSONL, gzip or plain: ``StartTimeOffset`` in ns, lengths in tokens.

    Raises TraceError, naming file, line and key; with ``skip_bad_rows`` bad rows are counted.
    """
    expected = ", ".join(KEYS)

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        need(row, KEYS, expected)
        yield Row(
            duration_ns(row["StartTimeOffset"], "StartTimeOffset", "ns", MAX_TIME_S),
            whole_number(row["ContextTokens"], "ContextTokens", 1),
            whole_number(row["GeneratedTokens"], "GeneratedTokens", 0),
        )

    rows = JsonRows(path)
    rows.read(parse, expected=expected, skip_bad_rows=skip_bad_rows)
    return rows.recording("apex")


FORMAT = Format(
    name="apex",
    description=f"JSON lines with {', '.join(KEYS)}; nanoseconds",
    read=read_apex,
    matches_object=has_all(KEYS),
)
