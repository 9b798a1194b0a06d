"""Sessions of coding agents: CSV of requests with their think times and shared prompt prefixes.

Source: callanjfox/kv-cache-tester (Apache-2.0), 692 sessions of Claude Code. Its hash ids are given
as (parent row, common blocks, blocks): a row's ids are the first ``lcp_blocks`` of its parent's,
then new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.errors import TraceError, shown
from sim.paths import is_file
from sim.request_table import PrefixChains
from workloads.chains import chain_offsets
from workloads.readers.csv_table import Column, CsvTable, read_csv, require, time_ns, whole
from workloads.readers.format import Format, has_all
from workloads.readers.recording import Recording, record
from workloads.readers.rows import MAX_ID, raise_at

BLOCK_TOKENS = 64
COLUMNS = (
    "session",
    "idx",
    "t_s",
    "agent",
    "input_tokens",
    "output_tokens",
    "parent",
    "lcp_blocks",
    "blocks",
    "api_s",
    "think_s",
)


def read_agentic(path: Path, *, skip_bad_rows: bool = False) -> Recording:
    """Read an agentic sessions CSV, gzip or plain: seconds, each session with a clock of its own.

    A request follows the previous one of its agent by ``think_s``. A sub-agent's first request
    follows the last request of the main agent that had its answer by then, by the time that passed
    since; so it overlaps with the main agent as recorded. Block ids (whole 64-token blocks) belong
    to one session. Raises TraceError, naming file, line and column; with ``skip_bad_rows`` bad
    rows, and rows that refer to them, are counted instead.
    """

    def columns_of(names: list[str]) -> Sequence[Column]:
        require(names, COLUMNS, ",".join(COLUMNS))
        return (
            whole("session", 0, MAX_ID),
            whole("idx"),
            time_ns("t_s", "s"),
            whole("agent"),
            whole("input_tokens", 1),
            whole("output_tokens"),
            _parent_column(),
            whole("lcp_blocks"),
            whole("blocks"),
            time_ns("api_s", "s"),
            time_ns("think_s", "s"),
        )

    table = read_csv(path, columns_of, skip_bad_rows=skip_bad_rows)
    order = np.lexsort((table.values["idx"], table.values["session"]))
    columns = {name: values[order] for name, values in table.values.items()}
    parent, good = _parent_rows(path, columns, table, order, skip_bad_rows)
    num_bad = int((~good).sum())
    if num_bad:
        place = np.cumsum(good) - 1
        columns = {name: values[good] for name, values in columns.items()}
        parent = np.where(parent[good] >= 0, place[parent[good]], -1)
    after, think_ns = _links(columns)
    num_new = columns["blocks"] - columns["lcp_blocks"]
    columns["first_new_id"] = np.cumsum(num_new) - num_new
    # Rows are put in order of time, as in the table, so that the long chains are made once.
    by_time = np.argsort(columns["t_s"], kind="stable")
    columns = {name: values[by_time] for name, values in columns.items()}
    parent, after, think_ns = (
        _places(parent, by_time)[by_time],
        _places(after, by_time)[by_time],
        think_ns[by_time],
    )
    return record(
        columns["t_s"],
        columns["input_tokens"],
        columns["output_tokens"],
        source=f"{path.name} (agentic)",
        chains=_chains(columns, parent),
        session=columns["session"],
        after=after,
        think_ns=think_ns,
        clock="session",
        skipped_rows=table.skipped_rows + num_bad,
        notes=(*table.notes, _sharing_note(path)),
    )


def _sharing_note(path: Path) -> str:
    """Note that sessions share nothing, and how long the part is that they might share."""
    note = "prompts share nothing across sessions: the trace's block ids are per session"
    beside = _sessions_files(path)
    if not beside:
        return note
    values = read_csv(beside[0], _fixed_part_columns, skip_bad_rows=True).values
    tokens = values["tool_tokens"] + values["system_tokens"]
    mean = f" (mean {tokens.mean():,.0f} tokens)" if len(tokens) else ""
    return f"{note}, tools and system prompt included{mean}"


def _sessions_files(path: Path) -> list[Path]:
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    named = (path.with_name(f"{stem}_sessions.csv{ending}") for ending in (".gz", ""))
    return [file for file in named if is_file(file)]


def _fixed_part_columns(names: list[str]) -> Sequence[Column]:
    wanted = ("tool_tokens", "system_tokens")
    require(names, wanted, ",".join(wanted))
    return [whole(name) for name in wanted]


def _parent_column() -> Column:
    """Return a column of whole numbers from 0, or -1 for none."""
    column = whole("parent")

    def parse(text: str, name: str) -> int:
        value: int = -1 if text == "-1" else column.parse(text, name)
        return value

    def parse_all(texts: list[str]) -> NDArray[np.int64] | None:
        numbers = column.parse_all(["0" if t == "-1" else t for t in texts])
        return None if numbers is None else np.where(np.array(texts) == "-1", -1, numbers)

    return Column("parent", parse, parse_all)


def _parent_rows(
    path: Path,
    columns: dict[str, Any],
    table: CsvTable,
    order: Int64,
    skip_bad_rows: bool,
) -> tuple[Int64, NDArray[np.bool_]]:
    """Return ``[n]`` the row of each row's parent, -1 for none, and which rows are good."""
    rows = zip(
        *(
            columns[name].tolist()
            for name in ("session", "idx", "parent", "lcp_blocks", "blocks", "input_tokens", "t_s")
        ),
        strict=True,
    )
    row_of: dict[tuple[int, int], int] = {}
    blocks_of: list[int] = []
    time_of: dict[int, int] = {}
    parents = np.full(len(order), -1, np.int64)
    good = np.ones(len(order), bool)
    for row, (session, idx, parent, common, blocks, tokens, t_ns) in enumerate(rows):
        blocks_of.append(blocks)
        before = row_of.get((session, parent), -1) if parent >= 0 else -1
        fault = None
        if (session, idx) in row_of:
            fault = f"idx {idx} appears twice in session {session}"
        elif blocks not in (tokens // BLOCK_TOKENS, -(-tokens // BLOCK_TOKENS)):
            fault = (
                f"blocks is {blocks}; expected {tokens // BLOCK_TOKENS}, the {BLOCK_TOKENS}-token "
                f"blocks of input_tokens {tokens}"
            )
        elif parent >= 0 and before < 0:
            fault = f"parent is {parent}; expected the idx of an earlier row of session {session}"
        elif common > min(blocks, blocks_of[before] if parent >= 0 else 0):
            fault = f"lcp_blocks is {common}; expected no more than the blocks of row and parent"
        elif t_ns < time_of.get(session, 0):
            fault = f"t_s is {shown(t_ns / 1e9)}; expected a time not before the row before"
        if fault is not None:
            if not skip_bad_rows:
                raise_at(path, int(table.line[order[row]]), TraceError(fault))
            good[row] = False
            continue
        row_of[session, idx] = row
        time_of[session] = t_ns
        parents[row] = before
    return parents, good


def _links(columns: dict[str, Any]) -> tuple[Int64, Int64]:
    """Return ``after`` and ``think_ns`` of rows in order of session and idx."""
    names = ("session", "agent", "t_s", "api_s", "think_s")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    after, think_ns = [], []
    last_of: dict[tuple[int, int], int] = {}
    main: list[tuple[int, int]] = []  # the session's rows of agent 0: (row, when answered)
    current = None
    for row, (session, agent, t_ns, api_ns, own_think_ns) in enumerate(rows):
        if session != current:
            current, main = session, []
        before = last_of.get((session, agent), -1)
        if before < 0 and main:
            answered = [m for m in main if m[1] <= t_ns] or main[:1]
            before, answered_ns = answered[-1]
            own_think_ns = max(0, t_ns - answered_ns)
        after.append(before)
        think_ns.append(own_think_ns)
        last_of[session, agent] = row
        if agent == 0:
            main.append((row, t_ns + api_ns))
    return np.array(after, np.int64), np.array(think_ns, np.int64)


def _chains(columns: dict[str, Any], parent: Int64) -> PrefixChains:
    """Build the chains of rows, each of which stands after its parent."""
    blocks, common = columns["blocks"], columns["lcp_blocks"]
    offsets = chain_offsets(blocks)
    ids = np.empty(offsets[-1], np.int64)
    starts = offsets.tolist()
    lists = (blocks, common, parent, columns["first_new_id"])
    rows = zip(starts[:-1], *(column.tolist() for column in lists), strict=True)
    for start, length, shared, before, first_new_id in rows:
        if shared:
            origin = starts[before]
            ids[start : start + shared] = ids[origin : origin + shared]
        new_ids = np.arange(first_new_id, first_new_id + length - shared)
        ids[start + shared : start + length] = new_ids
    return PrefixChains(
        ids=ids,
        offsets=offsets,
        tokens=np.minimum(blocks * BLOCK_TOKENS, columns["input_tokens"]),
        block_tokens=BLOCK_TOKENS,
    )


def _places(rows: Int64, order: Int64) -> Int64:
    """Return where the rows stand once they are put in ``order``; -1 stays."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return np.where(rows >= 0, place[rows], -1)


FORMAT = Format(
    name="agentic",
    description=f"CSV with {','.join(COLUMNS)}; 64-token blocks, a clock a session",
    read=read_agentic,
    matches_header=has_all(COLUMNS),
    beside=_sessions_files,
    companions=(("session", "requests", "tool_tokens"),),
    example="weka_agentic_a.csv",
)
