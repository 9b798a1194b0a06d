"""Detect the format of a trace file by its content, and read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypedDict, Unpack

from sim.errors import TraceError, shown
from sim.request_table import RequestTable
from workloads.readers.columns import find_columns, names_of, unnamed
from workloads.readers.csv_table import split_row
from workloads.readers.format import Format
from workloads.readers.recording import Recording
from workloads.readers.rows import open_text

# Modules of the formats, in order: the first `Format` that matches a file reads it.
_READERS = (
    "azure",
    "burstgpt",
    "mooncake",
    "bailian",
    "agentic",
    "ragpulse",
    "servegen_files",
    "length_file",
    "sglang",
    "aiperf",
    "llmservingsim",
    "apex",
    "trie",
    "blis",
    "columns",
)
FORMATS: dict[str, Format] = {
    known.name: known
    for name in _READERS
    for known in vars(import_module(f"workloads.readers.{name}")).values()
    if isinstance(known, Format)
}
"""Known formats by name."""

_TEXT_KEYS = {"prompt", "text", "texts", "text_input", "messages", "conversations"}


class ReadOptions(TypedDict, total=False):
    """How a trace file is read; a format ignores the last three if it does not have them."""

    format: str | None
    """A key of FORMATS, or None to detect it."""
    skip_bad_rows: bool
    """Whether malformed rows are counted in the table's ``skipped_rows`` instead of raised."""
    spread_ticks: bool
    """Whether the coarse clock of Mooncake files is undone (the default)."""
    block_tokens: int | None
    """Tokens that a hash id stands for."""
    columns: Mapping[str, str] | None
    """The file's columns by key (`workloads.readers.columns`); they make its format ``columns``."""


def read_trace(path: str | Path, **options: Unpack[ReadOptions]) -> RequestTable:
    """Read the requests of a trace file as they were recorded, as `read_recording` does."""
    return read_recording(path, **options).table


def read_recording(path: str | Path, **options: Unpack[ReadOptions]) -> Recording:
    """Read a trace file.

    Raises TraceError for a file that cannot be read as its format, and for ``servegen``, which has
    no requests (see `workloads.servegen`).
    """
    path = Path(path)
    named = "columns" if options.get("columns") else None
    name = options.get("format") or named or detect_format(path)
    if name not in FORMATS:
        raise TraceError(f"{path}: unknown format {shown(name)}; known formats:\n{_known()}")
    known = FORMATS[name]
    if known.read is None:
        raise TraceError(f"{path}: holds the rates of clients, not requests; simulate it")
    given = {option: options[option] for option in known.options if option in options}
    return known.read(path, skip_bad_rows=options.get("skip_bad_rows", False), **given)


def detect_format(path: str | Path) -> str:
    """Return the name of the format that fits the first line: a CSV header or a JSON object.

    It is ``columns`` if no other fits, and well-known names say what is a request's lengths. Raises
    TraceError if none does, if the file only lies beside a trace, and if it holds texts without
    token counts.
    """
    path = Path(path)
    with open_text(path) as text:
        first = next((line for line in text if not line.isspace()), "")
    if not first:
        raise TraceError(f"{path}: the file is empty; known formats:\n{_known()}")
    is_json = first.lstrip().startswith(("{", "["))
    name = _json_format(first) if is_json else _csv_format(path, first)
    if name is not None:
        return name
    with open_text(path) as text:
        names = names_of(text, path)
    if names and find_columns(names) is not None:
        return "columns"
    if is_json:
        _refuse_texts(path, first, names)
    raise TraceError(
        f"{path}: format not recognised, the first line is {shown(first.rstrip())}; "
        f"{unnamed(names)}; known formats:\n{_known()}"
    )


def files_of(path: Path) -> list[Path]:
    """Return a trace and the files beside it that its requests depend on too; only the file itself
    if it is no trace that can be read."""
    try:
        return [path, *FORMATS[detect_format(path)].beside(path)]
    except TraceError:
        return [path]


def _csv_format(path: Path, header: str) -> str | None:
    names = split_row(header)
    if len(set(names)) < len(names):
        return None
    for known in FORMATS.values():
        if any(set(columns) <= set(names) for columns in known.companions):
            raise TraceError(f"{path}: stands beside a trace; give that one (like {known.example})")
    for known in FORMATS.values():
        if known.matches_header is not None and known.matches_header(names):
            return known.name
    return None


def _json_format(line: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    for known in FORMATS.values():
        if known.matches_object is not None and known.matches_object(row):
            return known.name
    return None


def _refuse_texts(path: Path, line: str, names: list[str]) -> None:
    """Raise TraceError if a file holds texts without token counts."""
    with suppress(ValueError, RecursionError, LookupError, TypeError):
        names = [*names, *json.loads(line)["turns"][0]]
    if _TEXT_KEYS & {name.rpartition(".")[2] for name in names}:
        raise TraceError(
            f"{path}: has texts without token counts ({', '.join(sorted(names)[:8])}); fleetcast "
            "needs lengths: count tokens with your model's tokenizer and write input_length and "
            "output_length (aiperf), prompt_len and output_len (sglang), or a CSV with "
            "input_tokens,output_tokens"
        )


def _known() -> str:
    return "\n".join(f"  {known.name}: {known.description}" for known in FORMATS.values())
