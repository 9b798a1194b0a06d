"""Read a trace file of any known format, recognised by what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sim.errors import TraceError
from sim.request_table import RequestTable
from workloads.readers import (
    agentic,
    aiperf,
    apex,
    azure,
    bailian,
    blis,
    burstgpt,
    length_file,
    llmservingsim,
    mooncake,
    ragpulse,
    servegen_files,
    sglang,
    trie,
)
from workloads.readers.csv_table import split_row
from workloads.readers.recording import Recording
from workloads.readers.rows import open_text, shown

FORMATS = {
    "azure": f"CSV with {','.join(azure.PUBLISHED)} or {','.join(azure.REDUCED)}",
    "burstgpt": f"CSV with {','.join(burstgpt.COLUMNS)}; seconds; Session ID, Elapsed time",
    "mooncake": f"JSON lines with {', '.join(mooncake.KEYS)}; milliseconds, 512-token blocks; "
    "session_id, delay, request_id, wait_for",
    "mooncake-delta": "the same, a row only what its turn adds (name the format: it looks alike)",
    "bailian": f"JSON lines with {', '.join(bailian.KEYS)}; seconds, 16-token blocks",
    "agentic": f"CSV with {','.join(agentic.COLUMNS)}; 64-token blocks, a clock a session",
    "ragpulse": f"JSON lines with {', '.join(ragpulse.KEYS)}; seconds; chunk lengths in the "
    "*chunks.csv beside it",
    "servegen": f"CSV with {','.join(servegen_files.COLUMNS)}: clients' rates in 600 s; lengths in "
    "the *length_hist.csv beside it",
    "lengths": f"CSV with just {','.join(length_file.COLUMNS)}: no times",
    "sglang": "SGLang autobench: JSON lines with prompt_len, output_len, timestamp (ms)",
    "aiperf": "AIPerf: JSON lines with input_length, output_length, timestamp or delay (ms), or "
    "turns of these",
    "llmservingsim": f"JSON lines with {', '.join(llmservingsim.KEYS)}, or sub_requests",
    "apex": f"JSON lines with {', '.join(apex.KEYS)}; nanoseconds",
    "trie": f"JSON lines with {', '.join(trie.KEYS)}; seconds, no clock",
    "blis": f"TraceV2 CSV with {','.join(blis.KEYS)}",
}
"""Known formats and what each looks like."""

_COMPANIONS = {
    ("chunk_id", "kind", "tokens"): "ragpulse_requests.jsonl",
    ("model", "client", "field", "lo", "p"): "servegen_rates.csv",
    ("session", "requests", "tool_tokens"): "weka_agentic_a.csv",
    ("model", "client", "rate", "cv_med"): "servegen_rates.csv",
    ("model", "client", "t", "field", "mean"): "servegen_rates.csv",
}
"""Headers of files that stand beside a trace, and such a trace."""


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002
    skip_bad_rows: bool = False,
    spread_ticks: bool = True,
    block_tokens: int | None = None,
) -> RequestTable:
    """The requests of a trace file as they were recorded (`read_recording` says more of them)."""
    return read_recording(
        path,
        format=format,
        skip_bad_rows=skip_bad_rows,
        spread_ticks=spread_ticks,
        block_tokens=block_tokens,
    ).table


def read_recording(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002
    skip_bad_rows: bool = False,
    spread_ticks: bool = True,
    block_tokens: int | None = None,
) -> Recording:
    """Read a trace file; ``format`` is a key of FORMATS, or None to recognise it.

    ``skip_bad_rows`` counts malformed rows in the table's ``skipped_rows`` instead of raising;
    ``spread_ticks`` undoes the coarse clock of Mooncake files, and ``block_tokens`` says what a
    hash id of theirs, or of AIPerf's, stands for. Raises TraceError for a file that cannot be read
    as its format, and for ``servegen``, which has no requests (see `workloads.servegen`).
    """
    path = Path(path)
    moon = partial(mooncake.read_mooncake, spread_ticks=spread_ticks, block_tokens=block_tokens)
    readers: dict[str, Callable[..., Recording]] = {
        "azure": azure.read_azure,
        "burstgpt": burstgpt.read_burstgpt,
        "mooncake": moon,
        "mooncake-delta": partial(moon, deltas=True),
        "bailian": bailian.read_bailian,
        "agentic": agentic.read_agentic,
        "ragpulse": ragpulse.read_ragpulse,
        "lengths": length_file.read_lengths,
        "sglang": sglang.read_sglang,
        "aiperf": partial(aiperf.read_aiperf, block_tokens=block_tokens),
        "llmservingsim": llmservingsim.read_llmservingsim,
        "apex": apex.read_apex,
        "trie": trie.read_trie,
        "blis": blis.read_blis,
    }
    name = detect_format(path) if format is None else format
    if name not in FORMATS:
        raise TraceError(f"{path}: unknown format {shown(name)}; known formats:\n{_known()}")
    if name not in readers:
        raise TraceError(f"{path}: holds the rates of clients, not requests; simulate it")
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
    name = _json_format(path, first) if first.lstrip().startswith("{") else _csv_format(path, first)
    if name is None:
        raise TraceError(
            f"{path}: format not recognised, the first line is {shown(first.rstrip())}; "
            f"known formats:\n{_known()}"
        )
    return name


def _csv_format(path: Path, header: str) -> str | None:
    names = split_row(header)
    found = set(names)
    if len(found) < len(names):
        return None
    for columns, trace in _COMPANIONS.items():
        if set(columns) <= found:
            raise TraceError(f"{path}: stands beside a trace; give that one (like {trace})")
    wanted = {
        "servegen": servegen_files.COLUMNS,
        "agentic": agentic.COLUMNS,
        "burstgpt": burstgpt.COLUMNS,
        "blis": blis.KEYS,
        "azure": azure.PUBLISHED,
    }
    for name, columns in wanted.items():
        if set(columns) <= found:
            return name
    if found == set(azure.REDUCED):
        return "azure"
    return "lengths" if found == set(length_file.COLUMNS) else None


def _json_format(path: Path, line: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    keys = set(row)
    # Qwen-Bailian files have Mooncake's keys and chat_id, but seconds and 16-token blocks.
    wanted = {
        "ragpulse": ragpulse.KEYS,
        "bailian": bailian.KEYS,
        "mooncake": mooncake.KEYS[1:],
        "trie": trie.KEYS,
        "apex": apex.KEYS,
        "sglang": sglang.KEYS,
        "aiperf": aiperf.KEYS,
        "llmservingsim": llmservingsim.KEYS[:2],
    }
    for name, columns in wanted.items():
        if set(columns) <= keys and not (name in ("mooncake", "aiperf") and "chat_id" in keys):
            return name
    if "sub_requests" in keys:
        return "llmservingsim"
    turns = row.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], dict):
        keys |= set(turns[0])
        if set(aiperf.KEYS) <= keys:
            return "aiperf"
    if keys & {"prompt", "text", "texts", "text_input", "messages", "conversations"}:
        raise TraceError(
            f"{path}: has texts without token counts ({', '.join(sorted(keys)[:8])}); fleetcast "
            "needs lengths: count tokens with your model's tokenizer and write input_length and "
            "output_length (aiperf), prompt_len and output_len (sglang), or a CSV with "
            "input_tokens,output_tokens"
        )
    return None


def _known() -> str:
    return "\n".join(f"  {name}: {looks}" for name, looks in FORMATS.items())
