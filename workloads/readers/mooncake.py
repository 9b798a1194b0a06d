"""Mooncake traces and formats derived from them: JSON lines with lengths and prefix block ids.

Source: kvcache-ai/Mooncake (Apache-2.0), Qin et al., FAST 2025. Sessions, delays, dependencies and
deltas are extensions of NVIDIA Dynamo and AIPerf (Apache-2.0).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrays import Int64
from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS as CHUNK_BLOCK_TOKENS
from workloads.readers.chunk_trie import ChunkTrie
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import (
    DelayMs,
    Id,
    JsonRow,
    JsonRows,
    Name,
    PromptTokens,
    Row,
    TimeMs,
    Tokens,
    check_blocks,
)
from workloads.readers.recording import Recording

BLOCK_TOKENS = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")

_EXPECTED = ", ".join(KEYS)
_NO_WAITS = (None, None, None)


class Request(JsonRow):
    """A row; a time or a delay is needed."""

    timestamp: TimeMs | None = None
    created_time: TimeMs | None = None
    input_length: PromptTokens
    output_length: Tokens
    hash_ids: list[Id]
    delay: DelayMs | None = None
    delay_ms: DelayMs | None = None
    tool_wait_ms: DelayMs | None = None
    session_id: Name = None
    request_id: Name = None
    wait_for: list[Name] | None = None
    text_input: Any = None


def read_mooncake(
    path: Path,
    *,
    skip_bad_rows: bool = False,
    spread_ticks: bool = True,
    block_tokens: int | None = None,
    deltas: bool = False,
) -> Recording:
    """Read a Mooncake JSONL file, gzip or plain.

    A row is ``{"timestamp": ms, "input_length": .., "output_length": .., "hash_ids": [..]}``, with
    one id per started 512 tokens (or ``block_tokens``) of the prompt. Rows of one ``session_id``
    follow each other; a row with ``delay`` (or ``delay_ms``) instead of a time is sent that long
    after the previous answer. ``request_id``, ``wait_for`` and ``tool_wait_ms`` say what a request
    of an agent follows. Other keys are ignored.

    Arrivals count from the earliest row; with ``spread_ticks`` they are spread inside the clock's
    ticks (see `spread_inside_ticks`). With ``deltas`` a row is only what its turn adds to the
    prompt of the previous turn, and ids name its content alone. Raises TraceError, naming file,
    line and key, for anything else; with ``skip_bad_rows`` bad rows are counted instead (an empty
    or damaged file still raises).
    """
    size = BLOCK_TOKENS if block_tokens is None else block_tokens
    parse = _Parser(size, deltas)
    rows = JsonRows(path)
    rows.read(parse, expected=_EXPECTED, skip_bad_rows=skip_bad_rows)
    name = "mooncake-delta" if deltas else "mooncake"
    recording = rows.recording(
        name, block_tokens=CHUNK_BLOCK_TOKENS if deltas else size, notes=parse.notes()
    )
    table = recording.table
    if not spread_ticks or table.after is not None:
        return recording
    arrival_ns = spread_inside_ticks(table.arrival_ns)
    num_moved = int((arrival_ns != table.arrival_ns).sum())
    if not num_moved:
        return recording
    note = f"{num_moved} requests that shared a clock tick spread evenly up to the next tick"
    table = replace(table, arrival_ns=arrival_ns, notes=(*table.notes, note))
    return replace(recording, table=table)


def spread_inside_ticks(arrival_ns: Int64) -> Int64:
    """Space the arrivals ``[n]`` of each clock tick evenly until the next tick; they are in order.

    The published timestamps come in ticks of about 3 s, so requests look like bursts that never
    were. Among m requests at one time, the i-th (in file order, from 0) moves by i/m of the way to
    the next distinct time, but of no more than the median gap, so that a silence stays silent; the
    last tick takes the median gap. A file with distinct times, or with a single one, is left as it
    is. Even spacing is smoother than Poisson: below a tick's length it understates burstiness (in
    the public trace, IDC of 1 s windows 0.4 and CV of gaps 0.4); longer windows keep theirs.
    """
    tick_ns, first, num_in_tick = np.unique(arrival_ns, return_index=True, return_counts=True)
    gap_ns = np.diff(tick_ns)
    if not len(gap_ns):
        return arrival_ns
    median_ns = int(np.median(gap_ns))
    width_ns = np.append(np.minimum(gap_ns, median_ns), median_ns)
    place = np.arange(len(arrival_ns)) - np.repeat(first, num_in_tick)
    shift_ns = place * (np.repeat(width_ns, num_in_tick) / np.repeat(num_in_tick, num_in_tick))
    return arrival_ns + shift_ns.astype(np.int64)


class _Parser:
    """Turns one JSON row into one request; counts what had to be left out."""

    def __init__(self, block_tokens: int, deltas: bool) -> None:
        self._block_tokens = block_tokens
        self._deltas = deltas
        self._chunks: dict[Any, list[tuple[int, int]]] = {}  # (id, tokens) of a session's prompt
        self._trie = ChunkTrie()
        self._num_texts = self._num_joins = 0

    def __call__(self, row: dict[str, Any]) -> tuple[Row]:
        given = Request.model_validate(row)
        ids, prompt_tokens, session = given.hash_ids, given.input_length, given.session_id
        check_blocks(ids, prompt_tokens, self._block_tokens)
        time_ns = given.created_time if given.timestamp is None else given.timestamp
        if time_ns is None and given.delay is None and given.delay_ms is None:
            raise TraceError(f"timestamp is missing; expected {_EXPECTED}")
        if self._deltas:
            chunks = self._chunks[session] = self._whole_prompt(session, prompt_tokens, ids)
            prompt_tokens = sum(tokens for _, tokens in chunks)
            ids = self._trie.chain(chunks)
        waits = (given.delay, given.delay_ms, given.tool_wait_ms)
        think_ns = -1 if waits == _NO_WAITS else sum(wait_ns or 0 for wait_ns in waits)
        after = given.wait_for[-1] if given.wait_for else None
        self._num_joins += len(given.wait_for or ()) > 1
        self._num_texts += "text_input" in row
        return (
            Row(
                time_ns,
                prompt_tokens,
                given.output_length,
                ids,
                session,
                think_ns,
                given.request_id,
                after,
            ),
        )

    def notes(self) -> tuple[str, ...]:
        """Return notes on what was left out."""
        notes = []
        if self._num_texts:
            notes.append(f"text_input of {self._num_texts} rows ignored: only lengths count")
        if self._deltas:
            notes.append("prompts are the session's deltas so far; answers count where deltas do")
        if self._num_joins:
            notes.append(
                f"{self._num_joins} rows wait for several requests: they follow the last one named"
            )
        return tuple(notes)

    def _whole_prompt(self, session: Any, tokens: int, ids: list[int]) -> list[tuple[int, int]]:
        """Return the prompt of the session's previous turn with what this one adds to it."""
        if session is None:
            raise TraceError("session_id is missing; a delta needs to know what it adds to")
        size = self._block_tokens
        added = [(id_, min(size, tokens - at * size)) for at, id_ in enumerate(ids)]
        return [*self._chunks.get(session, ()), *added]


def _matches(row: dict[str, Any]) -> bool:
    """Match Mooncake's keys without chat_id.

    Qwen-Bailian files have these keys and chat_id, but seconds and 16-token blocks.
    """
    return has_all(KEYS[1:])(row) and "chat_id" not in row


FORMAT = Format(
    name="mooncake",
    description=f"JSON lines with {', '.join(KEYS)}; milliseconds, 512-token blocks; "
    "session_id, delay, request_id, wait_for",
    read=read_mooncake,
    options=("spread_ticks", "block_tokens"),
    matches_object=_matches,
)
DELTA_FORMAT = Format(
    name="mooncake-delta",
    description="the same, a row only what its turn adds (name the format: it looks alike)",
    read=partial(read_mooncake, deltas=True),
    options=("spread_ticks", "block_tokens"),
)
"""Rows of NVIDIA Dynamo and AIPerf that hold only what a turn adds to its session's prompt."""
