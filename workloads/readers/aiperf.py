"""AIPerf inputs with token counts: JSON lines of single turns, or of sessions' turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRows, Row, block_ids, name_of, need
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_TIME_S, duration_ns, shown, whole_number

KEYS = ("input_length", "output_length")

_BLOCK_TOKENS = 512
_EXPECTED = ", ".join(KEYS)


def read_aiperf(
    path: Path, *, skip_bad_rows: bool = False, block_tokens: int | None = None
) -> Recording:
    """Read AIPerf JSONL inputs, gzip or plain: single turns, or ``turns`` of a session.

    A turn has ``input_length``, ``output_length``, ``timestamp`` or ``delay`` (ms), and optionally
    ``hash_ids`` of 512-token blocks (or ``block_tokens``). Raises TraceError, naming file, line and
    key; with ``skip_bad_rows`` bad rows are counted instead.
    """
    size = _BLOCK_TOKENS if block_tokens is None else block_tokens
    rows = JsonRows(path)

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        session = name_of(row.get("session_id"), "session_id")
        if "turns" not in row:
            yield _turn(row, session, size)
            return
        if not isinstance(row["turns"], list) or not row["turns"]:
            raise TraceError(f"turns is {shown(row['turns'])}; expected a list of turns")
        session = ("line", len(rows)) if session is None else session
        for number, turn in enumerate(row["turns"]):
            if not isinstance(turn, dict):
                raise TraceError(f"turn {number} is {shown(turn)}; expected {_EXPECTED}")
            parsed = _turn(turn, session, size)
            if number and parsed.time_ns is None and parsed.think_ns < 0:
                parsed = parsed._replace(think_ns=0)
            yield parsed

    rows.read(parse, expected=_EXPECTED, skip_bad_rows=skip_bad_rows)
    return rows.recording("aiperf", block_tokens=size)


def _turn(turn: dict[str, Any], session: Any, size: int) -> Row:
    need(turn, KEYS, f"{_EXPECTED} (text has no token counts)")
    prompt_tokens = whole_number(turn["input_length"], "input_length", 1)
    time_ns, think_ns = None, -1
    if turn.get("timestamp") is not None:
        time_ns = duration_ns(turn["timestamp"], "timestamp", "ms", MAX_TIME_S)
    if turn.get("delay") is not None:
        think_ns = duration_ns(turn["delay"], "delay", "ms")
    blocks: list[int] = []
    if turn.get("hash_ids") is not None:
        blocks = block_ids(turn["hash_ids"], "hash_ids", "input_length", prompt_tokens, size)
    output_tokens = whole_number(turn["output_length"], "output_length", 0)
    return Row(time_ns, prompt_tokens, output_tokens, blocks, session, think_ns)


def _matches(row: dict[str, Any]) -> bool:
    """Match single turns and ``turns``.

    A single turn with hash_ids is read as Mooncake's, and one with chat_id is Qwen-Bailian's.
    """
    if has_all(KEYS)(row) and not {"hash_ids", "chat_id"} & set(row):
        return True
    turns = row.get("turns")
    if not (isinstance(turns, list) and turns and isinstance(turns[0], dict)):
        return False
    return has_all(KEYS)(row | turns[0])


FORMAT = Format(
    name="aiperf",
    description="AIPerf: JSON lines with input_length, output_length, timestamp or delay (ms), or "
    "turns of these",
    read=read_aiperf,
    options=("block_tokens",),
    matches_object=_matches,
)
