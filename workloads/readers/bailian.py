"""Qwen-Bailian traces: JSON lines of chats in a tree, with prefix ids of 16-token blocks.

Source: alibaba-edu/qwen-bailian-usagetraces-anon (Apache-2.0), "KVCache in the Wild", ATC 2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRows, Row, block_ids, need
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_ID, MAX_TIME_S, duration_ns, shown, whole_number

BLOCK_TOKENS = 16
KEYS = (
    "chat_id",
    "parent_chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
)


def read_bailian(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read a Qwen-Bailian JSONL file, gzip or plain: seconds, one clock, 16-token blocks.

    A chat follows the one that its ``parent_chat_id`` names (-1: none); all chats with one root are
    a session. Raises TraceError, naming file, line and key; with ``skip_bad_rows`` bad rows are
    counted instead.
    """
    root_of: dict[int, int] = {}
    expected = ", ".join(KEYS)

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        need(row, KEYS, expected)
        chat = whole_number(row["chat_id"], "chat_id", 0, MAX_ID)
        parent = whole_number(row["parent_chat_id"], "parent_chat_id", -1, MAX_ID)
        if chat in root_of:
            raise TraceError(f"chat_id {shown(chat)} appears twice; expected one row a chat")
        prompt_tokens = whole_number(row["input_length"], "input_length", 1)
        output_tokens = whole_number(row["output_length"], "output_length", 0)
        time_ns = duration_ns(row["timestamp"], "timestamp", "s", MAX_TIME_S)
        ids = block_ids(row["hash_ids"], "hash_ids", "input_length", prompt_tokens, BLOCK_TOKENS)
        root = root_of[chat] = root_of.get(parent, chat)
        after = None if parent < 0 else parent
        yield Row(time_ns, prompt_tokens, output_tokens, ids, root, name=chat, after=after)

    rows = JsonRows(path)
    rows.read(parse, expected=expected, skip_bad_rows=skip_bad_rows)
    return rows.recording("bailian", block_tokens=BLOCK_TOKENS)


FORMAT = Format(
    name="bailian",
    description=f"JSON lines with {', '.join(KEYS)}; seconds, 16-token blocks",
    read=read_bailian,
    matches_object=has_all(KEYS),
)
