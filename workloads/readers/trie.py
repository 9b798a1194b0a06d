"""TRIE workloads (Applied Compute): JSON lines of tool-using sessions, given by their lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import DelayS, JsonRow, JsonRows, Row, Tokens
from workloads.readers.recording import Recording

_LONGEST_TURN = 2_000_000
Length = Annotated[int, Field(ge=0, le=_LONGEST_TURN)]


class Session(JsonRow):
    """A session; the lists have an entry for each turn but the last one."""

    num_turns: Tokens
    input_prompt_length: Annotated[int, Field(ge=1, le=_LONGEST_TURN)]
    assistant_response_length: list[Length]
    tool_call_output_length: list[Length]
    tool_call_latency: list[DelayS]
    final_assistant_response_length: Length


KEYS = tuple(Session.model_fields)
_LISTS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")


def read_trie(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read TRIE (Applied Compute) JSONL, gzip or plain: one tool-using session per line.

    Each prompt is the previous one with its answer and the tool's output; the next request follows
    the answer by ``tool_call_latency`` seconds. So a session's prefixes are known, answers
    included, and sessions have no times. Raises TraceError, naming file, line and key; with
    ``skip_bad_rows`` bad rows are counted instead.
    """
    num_ids = 0
    rows = JsonRows(path)

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        nonlocal num_ids
        given = Session.model_validate(row)
        turns = given.num_turns
        for key in _LISTS:
            entries = len(getattr(given, key))
            if entries != turns:
                raise TraceError(f"{key} has {entries} entries; expected num_turns, {turns}")
        answers = [*given.assistant_response_length, given.final_assistant_response_length]
        session, think_ns, parsed = len(rows), -1, []
        prompt_tokens = given.input_prompt_length
        for turn, answer in enumerate(answers):
            blocks = range(num_ids, num_ids + (prompt_tokens + answer) // BLOCK_TOKENS)
            parsed.append(Row(None, prompt_tokens, answer, blocks, session, think_ns))
            if turn < turns:
                think_ns = given.tool_call_latency[turn]
                prompt_tokens += answer + given.tool_call_output_length[turn]
        num_ids += len(parsed[-1].block_ids)
        yield from parsed

    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("trie", block_tokens=BLOCK_TOKENS, covers_output=True)


FORMAT = Format(
    name="trie",
    description=f"JSON lines with {', '.join(KEYS)}; seconds, no clock",
    read=read_trie,
    matches_object=has_all(KEYS),
)
