"""Recordings: the requests of a trace file as they were recorded, in one table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sim.arrays import Int64
from sim.request_table import PrefixChains, RequestTable
from workloads.chains import take_chains

Clock = Literal["trace", "session", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The requests of a trace file, and what its times mean.

    In the table, ``arrival_ns`` are recorded times in order (the earliest possible time if it was
    not recorded), ``session`` says which requests belong together, and ``after`` and ``think_ns``
    how they follow each other. `workloads.replay.replayed` turns it into what is simulated.
    """

    table: RequestTable
    clock: Clock = "trace"
    """``trace``: one clock for all requests. ``session``: each session has its own, which starts at
    0. ``none``: no times, and all requests arrive at 0."""
    thinks: bool = False
    """Whether think times were recorded, rather than taken from the gaps between arrivals."""
    times: bool = True
    """Whether the later turns of sessions have recorded times."""


def record(
    time_ns: Int64,
    prompt_tokens: Int64,
    output_tokens: Int64,
    *,
    source: str,
    chains: PrefixChains | None = None,
    session: Int64 | None = None,
    after: Int64 | None = None,
    think_ns: Int64 | None = None,
    clock: Clock = "trace",
    times: bool = True,
    skipped_rows: int = 0,
    notes: Sequence[str] = (),
) -> Recording:
    """Make a recording from columns ``[n]`` in file order.

    Rows are sorted by time (stable: ties keep file order), and the first arrives at 0. ``after``
    names rows in file order, -1 none; without it, a row follows the previous one of its session.
    ``think_ns`` is -1 if it is not known; then it is the gap between the arrivals.
    """
    n = len(time_ns)
    notes = list(notes)
    is_ordered = clock == "trace" and times  # other files need not be in order of time
    num_late = int((np.diff(time_ns) < 0).sum()) if is_ordered else 0
    if num_late:
        notes.append(f"sorted by time: {num_late} rows were earlier than the row before")
    order = np.argsort(time_ns, kind="stable")
    if not np.array_equal(order, np.arange(n)):
        time_ns, prompt_tokens, output_tokens = (
            column[order] for column in (time_ns, prompt_tokens, output_tokens)
        )
        chains = None if chains is None else take_chains(chains, order)
        session = None if session is None else session[order]
        think_ns = None if think_ns is None else think_ns[order]
        if after is not None:
            place = np.empty(n, np.int64)
            place[order] = np.arange(n)
            after = np.where(after[order] >= 0, place[after[order]], -1)
    table = RequestTable(
        arrival_ns=time_ns - (time_ns[0] if n else 0),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        priority=np.zeros(n, np.int64),
        chains=chains,
        session=session,
        source=source,
        skipped_rows=skipped_rows,
    )
    if session is None:
        return Recording(table=replace(table, notes=tuple(notes)), clock=clock)
    if after is None:
        after = previous_of(session)
    later = after >= np.arange(n)
    if later.any():
        after = np.where(later, -1, after)
        notes.append(f"{int(later.sum())} turns begin anew: the turn before is recorded as later")
    follows = after >= 0
    gap_ns = np.where(follows, table.arrival_ns - table.arrival_ns[after], 0)
    known = np.full(n, -1) if think_ns is None else think_ns
    table = replace(
        table,
        after=after if follows.any() else None,
        think_ns=np.where(known >= 0, known, gap_ns) if follows.any() else None,
        notes=tuple(notes),
    )
    thinks = bool((known[follows] >= 0).any())
    return Recording(table=table, clock=clock, thinks=thinks, times=times)


def previous_of(key: Int64) -> Int64:
    """Return ``[n]`` the previous row with the same key, -1 for a key's first."""
    order = np.argsort(key, kind="stable")
    after = np.full(len(key), -1, np.int64)
    same = key[order[1:]] == key[order[:-1]]
    after[order[1:][same]] = order[:-1][same]
    return after


def session_numbers(names: Sequence[Hashable | None]) -> Int64 | None:
    """Number the names ``[n]`` in order of first appearance; None if no row has a name.

    A row without a name (None) becomes a session of its own.
    """
    numbers: dict[Hashable, int] = {}
    out = np.empty(len(names), np.int64)
    for row, name in enumerate(names):
        key = ("row", row) if name is None else ("name", name)
        out[row] = numbers.setdefault(key, len(numbers))
    return None if all(name is None for name in names) else out
