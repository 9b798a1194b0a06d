"""APEX workloads: JSON lines with a start offset and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from workloads.readers.format import Format, has_all
from workloads.readers.json_rows import JsonRow, JsonRows, PromptTokens, Row, TimeNs, Tokens
from workloads.readers.recording import Recording


class Request(JsonRow):
    """A request; its time is in nanoseconds."""

    time_ns: TimeNs = Field(alias="StartTimeOffset")
    prompt_tokens: PromptTokens = Field(alias="ContextTokens")
    output_tokens: Tokens = Field(alias="GeneratedTokens")


KEYS = ("StartTimeOffset", "ContextTokens", "GeneratedTokens")


def read_apex(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read APEX JSONL, gzip or plain: ``StartTimeOffset`` in ns, lengths in tokens.

    Raises TraceError, naming file, line and key; with ``skip_bad_rows`` bad rows are counted.
    """

    def parse(row: dict[str, Any]) -> Iterator[Row]:
        given = Request.model_validate(row)
        yield Row(given.time_ns, given.prompt_tokens, given.output_tokens)

    rows = JsonRows(path)
    rows.read(parse, expected=", ".join(KEYS), skip_bad_rows=skip_bad_rows)
    return rows.recording("apex")


FORMAT = Format(
    name="apex",
    description=f"JSON lines with {', '.join(KEYS)}; nanoseconds",
    read=read_apex,
    matches_object=has_all(KEYS),
)
