"""AIPerf inputs with token counts: JSON lines of single turns, or of sessions' turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
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

KEYS = ("input_length", "output_length")

_BLOCK_TOKENS = 512
_EXPECTED = f"{', '.join(KEYS)} (text has no token counts)"


class Turn(JsonRow):
    """A request with its time or its delay."""

    input_length: PromptTokens
    output_length: Tokens
    timestamp: TimeMs | None = None
    delay: DelayMs | None = None
    hash_ids: list[Id] | None = None

    def row(self, session: Any, block_tokens: int) -> Row:
        """Return the request; raises TraceError if it does not have an id for each block."""
        if self.hash_ids is not None:
            check_blocks(self.hash_ids, self.input_length, block_tokens)
        return Row(
            self.timestamp,
            self.input_length,
            self.output_length,
            self.hash_ids or (),
            session,
            -1 if self.delay is None else self.delay,
        )


class SingleTurn(Turn):
    """A line with one request."""

    session_id: Name = None


class Session(JsonRow):
    """A line with all turns of a session."""

    session_id: Name = None
    turns: list[Turn]


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
        if "turns" not in row:
            single = SingleTurn.model_validate(row)
            yield single.row(single.session_id, size)
            return
        given = Session.model_validate(row)
        if not given.turns:
            raise TraceError("turns is empty; expected a list of turns")
        session = ("line", len(rows)) if given.session_id is None else given.session_id
        for number, turn in enumerate(given.turns):
            parsed = turn.row(session, size)
            if number and turn.timestamp is None and turn.delay is None:
                parsed = parsed._replace(think_ns=0)
            yield parsed

    rows.read(parse, expected=_EXPECTED, skip_bad_rows=skip_bad_rows)
    return rows.recording("aiperf", block_tokens=size)


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
