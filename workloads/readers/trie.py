"""TRIE workloads (Applied Compute): JSON lines of tool-using sessions, given by their lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRows, Row, need
from workloads.readers.recording import Recording
from workloads.readers.rows import duration_ns, shown, whole_number

KEYS = (
    "num_turns",
    "input_prompt_length",
    "assistant_response_length",
    "tool_call_output_length",
    "tool_call_latency",
    "final_assistant_response_length",
)
_LONGEST_TURN = 2_000_000


def read_trie(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read TRIE (Applied Compute) JSONL, gzip or plain: one tool-using session per line.

    Each prompt is the previous one with its answer and the tool's output; the next request follows
    the answer by ``tool_call_latency`` seconds. So a session's prefixes are known, answers
    included, and sessions have no times. Raises TraceError, naming file, line and key; with
    ``skip_bad_rows`` bad rows are counted instead.
    """
    expected = ", ".join(KEYS)
    num_ids = 0
    rows = JsonRows(path)

    def lengths(row: dict[str, Any], key: str, turns: int) -> list[int]:
        values = row[key]
        if not isinstance(values, list) or len(values) != turns:
            raise TraceError(f"{key} is {shown(values)}; expected a list of num_turns ({turns})")
        return [whole_number(value, key, 0, _LONGEST_TURN) for value in values]

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        nonlocal num_ids
        need(row, KEYS, expected)
        turns = whole_number(row["num_turns"], "num_turns", 0)
        answers = lengths(row, "assistant_response_length", turns)
        tool_outputs = lengths(row, "tool_call_output_length", turns)
        waits = row["tool_call_latency"]
        if not isinstance(waits, list) or len(waits) != turns:
            raise TraceError(f"tool_call_latency is {shown(waits)}; expected {turns} numbers")
        last = "final_assistant_response_length"
        answers.append(whole_number(row[last], last, 0, _LONGEST_TURN))
        prompt_tokens = whole_number(
            row["input_prompt_length"], "input_prompt_length", 1, _LONGEST_TURN
        )
        session, think_ns, parsed = len(rows), -1, []
        for turn, answer in enumerate(answers):
            blocks = range(num_ids, num_ids + (prompt_tokens + answer) // BLOCK_TOKENS)
            parsed.append(Row(None, prompt_tokens, answer, blocks, session, think_ns))
            if turn < turns:
                think_ns = duration_ns(waits[turn], "tool_call_latency", "s")
                prompt_tokens += answer + tool_outputs[turn]
        num_ids += len(parsed[-1].block_ids)
        yield from parsed

    rows.read(parse, expected=expected, skip_bad_rows=skip_bad_rows)
    return rows.recording("trie", block_tokens=BLOCK_TOKENS, covers_output=True)


FORMAT = Format(
    name="trie",
    description=f"JSON lines with {', '.join(KEYS)}; seconds, no clock",
    read=read_trie,
    matches_object=has_all(KEYS),
)
