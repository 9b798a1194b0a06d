"""BLIS TraceV2: CSV of requests with sessions and shared prefixes; its YAML header is not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim.request_table import PrefixChains
from workloads.chains import chain_offsets
from workloads.readers.chunk_trie import BLOCK_TOKENS, ChunkTrie
from workloads.readers.csv_table import Column, read_csv, require, text, time_ns, whole
from workloads.readers.format import Format, has_all
from workloads.readers.recording import Recording, record, session_numbers

TIME = "arrival_time_us"
KEYS = ("request_id", "session_id", "round_index", "input_tokens", "output_tokens", TIME)
_LONGEST_PREFIX = 2_000_000


def read_blis(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read the CSV of a BLIS TraceV2, gzip or plain: microseconds, one clock.

    A prompt is ``prefix_length`` tokens shared by its ``prefix_group``, then ``input_tokens`` of
    its own. Rounds of a session follow each other. Requests whose ``status`` is not ``ok`` are
    dropped, and a note counts them. Raises TraceError, naming file, line and column; with
    ``skip_bad_rows`` bad rows are counted instead.
    """
    optional = ("prefix_group", "prefix_length", "status")
    given: list[str] = []

    def columns_of(names: list[str]) -> Sequence[Column]:
        require(names, KEYS, ",".join(KEYS))
        given.extend(name for name in optional if name in names)
        columns = [
            time_ns(TIME, "us", is_time=True),
            whole("input_tokens"),
            whole("output_tokens"),
            text("session_id"),
        ]
        if "prefix_group" in given:
            columns.append(text("prefix_group"))
        if "prefix_length" in given:
            columns.append(whole("prefix_length", 0, _LONGEST_PREFIX))
        return [*columns, text("status")] if "status" in given else columns

    table = read_csv(path, columns_of, skip_bad_rows=skip_bad_rows)
    values, n = table.values, len(table.line)
    status = values.get("status", ["ok"] * n)
    prefix_tokens = np.asarray(values.get("prefix_length", np.zeros(n)), np.int64)
    groups = values.get("prefix_group", [""] * n)
    prompt_tokens = values["input_tokens"] + prefix_tokens
    is_ok = np.array([s in ("", "ok") for s in status], bool)
    kept = np.flatnonzero(is_ok & (prompt_tokens > 0))
    kept = kept[np.argsort(values[TIME][kept], kind="stable")]
    trie = ChunkTrie()
    chains = [
        trie.chain([(groups[row], int(prefix_tokens[row]))]) if groups[row] else []
        for row in kept.tolist()
    ]
    lengths = np.array([len(chain) for chain in chains], np.int64)
    names = [values["session_id"][row] or None for row in kept.tolist()]
    notes = [f"{n - len(kept)} requests that failed dropped"] if n > len(kept) else []
    return record(
        values[TIME][kept],
        prompt_tokens[kept],
        values["output_tokens"][kept],
        source=f"{path.name} (blis)",
        chains=PrefixChains(
            ids=np.array([id_ for chain in chains for id_ in chain], np.int64),
            offsets=chain_offsets(lengths),
            tokens=lengths * BLOCK_TOKENS,
            block_tokens=BLOCK_TOKENS,
        ),
        session=session_numbers(names),
        skipped_rows=table.skipped_rows,
        notes=notes,
    )


FORMAT = Format(
    name="blis",
    description=f"TraceV2 CSV with {','.join(KEYS)}",
    read=read_blis,
    matches_header=has_all(KEYS),
)
