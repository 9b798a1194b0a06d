"""LLMServingSim workloads: JSON lines of requests, or of agents' sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS, ChunkTrie, token_groups
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import (
    DelayNs,
    Id,
    JsonRow,
    JsonRows,
    Name,
    PromptTokens,
    Row,
    TimeNs,
    Tokens,
)
from workloads.readers.recording import Recording

KEYS = ("input_toks", "output_toks", "arrival_time_ns")


class Request(JsonRow):
    """A single request, or one of a session: the next one waits ``tool_duration_ns`` for it."""

    input_toks: PromptTokens
    output_toks: Tokens
    arrival_time_ns: TimeNs | None = None
    tool_duration_ns: DelayNs = 0
    input_tok_ids: list[Id] | None = None


class Session(JsonRow):
    """A session that starts at ``arrival_time_ns``."""

    session_id: Name = None
    arrival_time_ns: TimeNs | None = None
    sub_requests: list[Request]


def read_llmservingsim(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read LLMServingSim JSONL, gzip or plain: nanoseconds, single requests or sessions.

    The ``sub_requests`` of a session follow each other by ``tool_duration_ns``. Equal leading
    ``input_tok_ids`` are a shared prefix, in blocks of 16 tokens. Raises TraceError, naming file,
    line and key; with ``skip_bad_rows`` bad rows are counted instead.
    """
    trie = ChunkTrie()
    rows = JsonRows(path)

    def request_row(request: Request) -> Row:
        tokens = (request.input_tok_ids or [])[: request.input_toks]
        blocks = trie.chain(token_groups(tokens))
        return Row(request.arrival_time_ns, request.input_toks, request.output_toks, blocks)

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        if "sub_requests" not in row:
            yield request_row(Request.model_validate(row))
            return
        given = Session.model_validate(row)
        if not given.sub_requests:
            raise TraceError("sub_requests is empty; expected a list of requests")
        session = ("line", len(rows)) if given.session_id is None else given.session_id
        time_ns, think_ns = given.arrival_time_ns, -1
        for request in given.sub_requests:
            yield request_row(request)._replace(time_ns=time_ns, session=session, think_ns=think_ns)
            time_ns, think_ns = None, request.tool_duration_ns

    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("llmservingsim", block_tokens=BLOCK_TOKENS)


def _matches(row: dict[str, Any]) -> bool:
    return has_all(KEYS[:2])(row) or "sub_requests" in row


FORMAT = Format(
    name="llmservingsim",
    description=f"JSON lines with {', '.join(KEYS)}, or sub_requests",
    read=read_llmservingsim,
    matches_object=_matches,
)
