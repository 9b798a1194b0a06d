"""SGLang autobench inputs: JSON lines with token counts, and token ids where the prompt is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS, ChunkTrie, token_groups
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import Id, JsonRow, JsonRows, PromptTokens, Row, TimeMs, Tokens
from workloads.readers.recording import Recording

KEYS = ("prompt_len", "output_len")


class Request(JsonRow):
    """A request; a ``prompt`` that is text has no token ids."""

    prompt_len: PromptTokens
    output_len: Tokens
    timestamp: TimeMs | None = None
    prompt: Annotated[
        list[Id] | None, BeforeValidator(lambda value: value if isinstance(value, list) else None)
    ] = None


def read_sglang(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read SGLang autobench JSONL, gzip or plain, with ``timestamp`` in ms.

    If ``prompt`` is a list of token ids, equal leading ids are a shared prefix, in blocks of 16
    tokens. Rows without a timestamp have no times at all. Raises TraceError, naming file, line and
    key; with ``skip_bad_rows`` bad rows are counted instead.
    """
    trie = ChunkTrie()

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        given = Request.model_validate(row)
        tokens = given.prompt
        if tokens is not None and len(tokens) != given.prompt_len:
            raise TraceError(
                f"prompt has {len(tokens)} token ids; expected prompt_len, {given.prompt_len}"
            )
        blocks = trie.chain(token_groups(tokens or []))
        yield Row(given.timestamp, given.prompt_len, given.output_len, blocks)

    rows = JsonRows(path)
    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("sglang", block_tokens=BLOCK_TOKENS)


FORMAT = Format(
    name="sglang",
    description="SGLang autobench: JSON lines with prompt_len, output_len, timestamp (ms)",
    read=read_sglang,
    matches_object=has_all(KEYS),
)
