"""RAGPulse: JSON lines of retrieval-augmented requests, each prompt a list of chunks of text.

Source: flashserve/RAGPulse (MIT). The lengths of the chunks are in a CSV beside the requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS, ChunkTrie
from workloads.readers.csv_table import Column, read_csv, require, whole
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import (
    Id,
    JsonRow,
    JsonRows,
    Name,
    PromptTokens,
    Row,
    TimeS,
    Tokens,
)
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_ID, companion

PARTS = ("sys", "psg", "hist", "web", "user")
"""Kinds of chunks in the order of the prompt."""
_LONGEST_CHUNK = 1_000_000
_CHUNK_COLUMNS = ("chunk_id", "kind", "tokens")


class Request(JsonRow):
    """A request; its prompt is the chunks of all kinds, by their ids."""

    t_s: TimeS
    session: Name
    input_tokens: PromptTokens
    output_tokens: Tokens
    sys: list[Id]
    psg: list[Id]
    hist: list[Id]
    web: list[Id]
    user: list[Id]


KEYS = tuple(Request.model_fields)


def read_ragpulse(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read RAGPulse requests, gzip or plain: seconds, one clock.

    The chunks' lengths are read from the file of the same name with ``chunks`` for ``requests``
    (``chunk_id,kind,tokens``). Prompts share the 16-token blocks that lie inside their common
    leading chunks; the few tokens that no chunk covers (about 1%) come last and are not shared.
    Raises TraceError, naming file, line and column; with ``skip_bad_rows`` bad rows are counted
    instead.
    """
    tokens_of = _chunk_tokens(path)
    trie = ChunkTrie()

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        given = Request.model_validate(row)
        chunks = []
        for part in PARTS:
            for chunk in getattr(given, part):
                if chunk not in tokens_of:
                    raise TraceError(f"{part} names chunk {chunk}, which has no length")
                chunks.append((chunk, tokens_of[chunk]))
        blocks = trie.chain(chunks, given.input_tokens)
        yield Row(given.t_s, given.input_tokens, given.output_tokens, blocks, given.session)

    rows = JsonRows(path)
    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("ragpulse", block_tokens=BLOCK_TOKENS)


def _chunk_tokens(path: Path) -> dict[int, int]:
    sibling = _chunks_file(path)

    def columns_of(names: list[str]) -> Sequence[Column]:
        require(names, _CHUNK_COLUMNS, ",".join(_CHUNK_COLUMNS))
        return whole("chunk_id", 0, MAX_ID), whole("tokens", 0, _LONGEST_CHUNK)

    table = read_csv(sibling, columns_of, skip_bad_rows=False)
    chunk_ids: np.ndarray[Any, Any] = table.values["chunk_id"]
    return dict(zip(chunk_ids.tolist(), table.values["tokens"].tolist(), strict=True))


def _chunks_file(path: Path) -> Path:
    return companion(path, "requests", "chunks", "jsonl", "csv")


FORMAT = Format(
    name="ragpulse",
    description=f"JSON lines with {', '.join(KEYS)}; seconds; chunk lengths in the "
    "*chunks.csv beside it",
    read=read_ragpulse,
    matches_object=has_all(KEYS),
    beside=lambda path: [_chunks_file(path)],
    companions=(_CHUNK_COLUMNS,),
    example="ragpulse_requests.jsonl",
)
