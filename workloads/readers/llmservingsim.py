"""LLMServingSim workloads: JSON lines of requests, or of agents' sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS, ChunkTrie, token_groups
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRows, Row, ids, name_of, need
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_TIME_S, duration_ns, shown, whole_number

KEYS = ("input_toks", "output_toks", "arrival_time_ns")


def read_llmservingsim(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read LLMServingSim JSONL, gzip or plain: nanoseconds, single requests or sessions.

    The ``sub_requests`` of a session follow each other by ``tool_duration_ns``. Equal leading
    ``input_tok_ids`` are a shared prefix, in blocks of 16 tokens. Raises TraceError, naming file,
    line and key; with ``skip_bad_rows`` bad rows are counted instead.
    """
    trie = ChunkTrie()
    rows = JsonRows(path)

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        time_ns = None
        if row.get("arrival_time_ns") is not None:
            time_ns = duration_ns(row["arrival_time_ns"], "arrival_time_ns", "ns", MAX_TIME_S)
        if "sub_requests" not in row:
            yield _sub_request(row, trie)._replace(time_ns=time_ns)
            return
        requests = row["sub_requests"]
        if not isinstance(requests, list) or not requests:
            raise TraceError(f"sub_requests is {shown(requests)}; expected a list of requests")
        session = name_of(row.get("session_id"), "session_id")
        session = ("line", len(rows)) if session is None else session
        think_ns = -1
        for number, request in enumerate(requests):
            if not isinstance(request, dict):
                raise TraceError(f"sub-request {number} is {shown(request)}; expected an object")
            own_ns = None if number else time_ns
            yield _sub_request(request, trie)._replace(
                time_ns=own_ns, session=session, think_ns=think_ns
            )
            think_ns = duration_ns(request.get("tool_duration_ns", 0), "tool_duration_ns", "ns")

    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("llmservingsim", block_tokens=BLOCK_TOKENS)


def _sub_request(row: dict[str, Any], trie: ChunkTrie) -> Row:
    need(row, KEYS[:2], ", ".join(KEYS))
    prompt_tokens = whole_number(row["input_toks"], "input_toks", 1)
    blocks: list[int] = []
    if row.get("input_tok_ids"):
        tokens = ids(row["input_tok_ids"], "input_tok_ids")
        blocks = trie.chain(token_groups(tokens[:prompt_tokens]))
    return Row(None, prompt_tokens, whole_number(row["output_toks"], "output_toks", 0), blocks)


def _matches(row: dict[str, Any]) -> bool:
    return has_all(KEYS[:2])(row) or "sub_requests" in row


FORMAT = Format(
    name="llmservingsim",
    description=f"JSON lines with {', '.join(KEYS)}, or sub_requests",
    read=read_llmservingsim,
    matches_object=_matches,
)
