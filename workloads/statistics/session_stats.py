"""Conversations and agent runs: how many turns they have, and how long passes between turns."""

from __future__ import annotations

import math

import numpy as np

from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.request_table import RequestTable

PERCENTILES = (50, 90, 99)


def session_statistics(
    table: RequestTable, *, has_times: bool | None = None, has_thinks: bool | None = None
) -> dict[str, float]:
    """Statistics of sessions; empty where the table has none.

    ``turns`` are a session's requests. ``turn_gap_s`` is from one request of a session to its next
    (``has_times``: the arrivals of all are known; by default, in an open loop), ``think_time_s``
    from an answer to the request that waits for it (``has_thinks``: it is known; by default, where
    requests wait). Rows of no session (-1) are left out.
    """
    if table.session is None:
        return {}
    rows = np.flatnonzero(table.session >= 0)
    _, session, turns = np.unique(table.session[rows], return_inverse=True, return_counts=True)
    if not len(turns):
        return {}
    found = {
        "num_sessions": len(turns),
        "turns_mean": float(turns.mean()),
        **{f"turns_p{p}": float(np.percentile(turns, p)) for p in PERCENTILES},
        "turns_max": int(turns.max()),
        "single_turn_fraction": float(np.mean(turns == 1)),
    }
    if table.is_open_loop if has_times is None else has_times:
        order = np.lexsort((table.arrival_ns[rows], session))
        is_next = np.diff(session[order]) == 0
        gaps_ns = np.diff(table.arrival_ns[rows][order])[is_next]
        found |= _percentiles_s("turn_gap_s", gaps_ns)
    if table.after is not None and table.think_ns is not None and has_thinks is not False:
        found |= _percentiles_s("think_time_s", table.think_ns[table.after >= 0])
    return found


def _percentiles_s(name: str, times_ns: Int64) -> dict[str, float]:
    if not len(times_ns):
        return {f"{name}_p{p}": math.nan for p in PERCENTILES}
    found = np.percentile(times_ns, PERCENTILES) / NS_PER_S
    return {f"{name}_p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}
