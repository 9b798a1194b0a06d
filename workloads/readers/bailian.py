"""Qwen-Bailian traces: JSON lines of chats in a tree, with prefix ids of 16-token blocks.

Source: alibaba-edu/qwen-bailian-usagetraces-anon (Apache-2.0), "KVCache in the Wild", ATC 2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sim.errors import TraceError
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import (
    Id,
    JsonRow,
    JsonRows,
    PromptTokens,
    Row,
    TimeS,
    Tokens,
    check_blocks,
)
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_ID

BLOCK_TOKENS = 16


class Chat(JsonRow):
    """A request; ``parent_chat_id`` is -1 for the first of a tree."""

    chat_id: Id
    parent_chat_id: Annotated[int, Field(ge=-1, le=MAX_ID)]
    timestamp: TimeS
    input_length: PromptTokens
    output_length: Tokens
    hash_ids: list[Id]


KEYS = tuple(Chat.model_fields)


def read_bailian(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read a Qwen-Bailian JSONL file, gzip or plain: seconds, one clock, 16-token blocks.

    A chat follows the one that its ``parent_chat_id`` names (-1: none); all chats with one root are
    a session. Raises TraceError, naming file, line and key; with ``skip_bad_rows`` bad rows are
    counted instead.
    """
    root_of: dict[int, int] = {}

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        given = Chat.model_validate(row)
        chat, parent = given.chat_id, given.parent_chat_id
        if chat in root_of:
            raise TraceError(f"chat_id {chat} appears twice; expected one row a chat")
        check_blocks(given.hash_ids, given.input_length, BLOCK_TOKENS)
        root = root_of[chat] = root_of.get(parent, chat)
        yield Row(
            given.timestamp,
            given.input_length,
            given.output_length,
            given.hash_ids,
            root,
            name=chat,
            after=None if parent < 0 else parent,
        )

    rows = JsonRows(path)
    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("bailian", block_tokens=BLOCK_TOKENS)


FORMAT = Format(
    name="bailian",
    description=f"JSON lines with {', '.join(KEYS)}; seconds, 16-token blocks",
    read=read_bailian,
    matches_object=has_all(KEYS),
)
