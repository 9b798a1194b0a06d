"""Read a trace file of any known format, recognised by what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sim.errors import TraceError
from sim.request_table import RequestTable
from workloads.azure import PUBLISHED, REDUCED, find_layout, read_azure, split_row
from workloads.mooncake import KEYS, read_mooncake
from workloads.rows import open_text, shown

FORMATS = {
    "azure": f"CSV with {','.join(PUBLISHED)} or {','.join(REDUCED)}",
    "mooncake": f"JSON lines with {', '.join(KEYS)}; milliseconds, 512-token blocks",
}
"""Known formats and what each looks like."""


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002
    skip_bad_rows: bool = False,
    spread_ticks: bool = True,
) -> RequestTable:
    """Read a trace file; ``format`` is a key of FORMATS, or None to recognise it.

    ``skip_bad_rows`` counts malformed rows in the table's ``skipped_rows`` instead of raising;
    ``spread_ticks`` undoes the coarse clock of Mooncake files. Raises TraceError for a file that
    cannot be read as its format.
    """
    path = Path(path)
    readers: dict[str, Callable[..., RequestTable]] = {
        "azure": read_azure,
        "mooncake": partial(read_mooncake, spread_ticks=spread_ticks),
    }
    name = detect_format(path) if format is None else format
    if name not in readers:
        raise TraceError(f"{path}: unknown format {shown(name)}; known formats:\n{_known()}")
    return readers[name](path, skip_bad_rows=skip_bad_rows)


def detect_format(path: str | Path) -> str:
    """The key of FORMATS that fits the first line: a CSV header or a JSON object.

    Raises TraceError where none does, or where the unit of time or the block size would be a guess.
    """
    path = Path(path)
    with open_text(path) as text:
        first = next((line for line in text if not line.isspace()), "")
    if not first:
        raise TraceError(f"{path}: the file is empty; known formats:\n{_known()}")
    name = _json_format(first) if first.lstrip().startswith("{") else _csv_format(first)
    if name is None:
        raise TraceError(
            f"{path}: format not recognised, the first line is {shown(first.rstrip())}; "
            f"known formats:\n{_known()}"
        )
    return name


def _csv_format(header: str) -> str | None:
    try:
        find_layout(split_row(header))
    except TraceError:
        return None
    return "azure"


def _json_format(line: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # Qwen-Bailian files have the same keys and chat_id, but seconds and 16-token blocks.
    return "mooncake" if set(KEYS) <= set(row) and "chat_id" not in row else None


def _known() -> str:
    return "\n".join(f"  {name}: {looks}" for name, looks in FORMATS.items())
