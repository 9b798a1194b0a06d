"""SGLang autobench inputs: JSON lines with token counts, and token ids where the prompt is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from workloads.readers.chunk_trie import BLOCK_TOKENS, ChunkTrie, token_groups
from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRows, Row, ids, need
from workloads.readers.recording import Recording
from workloads.readers.rows import MAX_TIME_S, duration_ns, whole_number

KEYS = ("prompt_len", "output_len")


def read_sglang(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read SGLang autobench JSONL, gzip or plain, with ``timestamp`` in ms.

    If ``prompt`` is a list of token ids, equal leading ids are a shared prefix, in blocks of 16
    tokens. Rows without a timestamp have no times at all. Raises TraceError, naming file, line and
    key; with ``skip_bad_rows`` bad rows are counted instead.
    """
    trie = ChunkTrie()

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        need(row, KEYS, ", ".join(KEYS))
        prompt_tokens = whole_number(row["prompt_len"], "prompt_len", 1)
        blocks: list[int] = []
        if isinstance(row.get("prompt"), list):
            tokens = ids(row["prompt"], "prompt")
            if len(tokens) != prompt_tokens:
                raise TraceError(
                    f"prompt has {len(tokens)} token ids; expected prompt_len, {prompt_tokens}"
                )
            blocks = trie.chain(token_groups(tokens))
        time_ns = None
        if row.get("timestamp") is not None:
            time_ns = duration_ns(row["timestamp"], "timestamp", "ms", MAX_TIME_S)
        yield Row(time_ns, prompt_tokens, whole_number(row["output_len"], "output_len", 0), blocks)

    rows = JsonRows(path)
    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("sglang", block_tokens=BLOCK_TOKENS)


FORMAT = Format(
    name="sglang",
    description="SGLang autobench: JSON lines with prompt_len, output_len, timestamp (ms)",
    read=read_sglang,
    matches_object=has_all(KEYS),
)
