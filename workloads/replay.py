"""Turn recordings into workloads: draw session starts, replay open or closed, draw arrivals."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.errors import ScenarioError
from sim.request_table import RequestTable
from workloads.chains import chain_offsets, copy_chains
from workloads.generator.arrivals import LATEST_ARRIVAL_NS

_MOST_SESSIONS = 10_000_000
_STARTS, _CHOICES, _ARRIVALS = range(3)  # numbers of the random streams of a seed


def draw_sessions(
    table: RequestTable,
    sessions_per_h: float,
    *,
    duration_s: float | None = None,
    num_sessions: int | None = None,
    seed: int = 0,
) -> RequestTable:
    """Draw sessions with replacement, and start them as a Poisson process.

    The sessions' clocks start at 0. Either ``num_sessions`` whole sessions are drawn, or all that
    start within ``duration_s``, of which only the requests recorded before its end are kept. A
    session drawn again has block ids of its own; the first draws of different sessions share what
    they shared in the trace. Starts and choices have random streams of their own, so the first m
    sessions depend on neither duration nor number. Raises ScenarioError for a table without
    sessions and for numbers out of range.
    """
    if table.session is None or not len(table):
        raise ScenarioError(f"{table.source}: has no sessions to draw from")
    if not 0 < sessions_per_h < np.inf:
        raise ScenarioError(f"sessions_per_h is {sessions_per_h}; expected a number above 0")
    if (duration_s is None) == (num_sessions is None):
        raise ScenarioError("give either duration_s or num_sessions")
    starts_ns = _session_starts_ns(sessions_per_h, duration_s, num_sessions, seed)
    by_session = np.argsort(table.session, kind="stable")
    _, first, sizes = np.unique(table.session[by_session], return_index=True, return_counts=True)
    drawn = np.random.default_rng((seed, _CHOICES)).integers(len(first), size=len(starts_ns))

    # Rows of the drawn sessions, session after session, each in table order.
    offsets = chain_offsets(sizes[drawn])
    draw = np.repeat(np.arange(len(drawn)), sizes[drawn])
    rank = np.arange(offsets[-1]) - offsets[draw]
    rows = by_session[first[drawn][draw] + rank]
    recorded_ns = table.arrival_ns[rows] - table.arrival_ns[by_session[first]][drawn][draw]
    arrival_ns = starts_ns[draw] + recorded_ns

    order = np.argsort(arrival_ns, kind="stable")
    if duration_s is not None:
        order = order[arrival_ns[order] < duration_s * NS_PER_S]
    after, think_ns = None, None
    if table.after is not None and table.think_ns is not None:
        rank_of_row = np.empty(len(table), np.int64)
        rank_of_row[by_session] = np.arange(len(table)) - np.repeat(first, sizes)
        place = np.full(len(rows), -1, np.int64)
        place[order] = np.arange(len(order))
        before = table.after[rows]
        before_rank = np.where(before >= 0, rank_of_row[before], 0)
        after = np.where(before >= 0, place[offsets[draw] + before_rank], -1)[order]
        think_ns = table.think_ns[rows][order]
    rows, draw = rows[order], draw[order]
    chains = table.chains
    if chains is not None:
        chains = copy_chains(chains, rows, _times_drawn_before(drawn)[draw])
    return replace(
        table,
        arrival_ns=arrival_ns[order],
        prompt_tokens=table.prompt_tokens[rows],
        output_tokens=table.output_tokens[rows],
        priority=table.priority[rows],
        chains=chains,
        after=after,
        think_ns=think_ns,
        session=draw,
        class_index=None if table.class_index is None else table.class_index[rows],
        notes=(*table.notes, _draw_note(len(first), len(drawn), sessions_per_h, duration_s)),
    )


def replayed(table: RequestTable, how: Literal["open", "closed"]) -> RequestTable:
    """Return a recorded table as it is to be simulated, open or closed.

    Open, every request arrives at its recorded time. Closed, a later turn is sent a think time
    after the answer before it, whenever that comes. Both hold the same requests in the same order.
    A table without later turns is returned as it is.
    """
    if table.after is None:
        return table
    if how == "open":
        note = "sessions replayed open: every turn at its recorded time"
        return replace(table, after=None, think_ns=None, notes=(*table.notes, note))
    note = "sessions replayed closed: a later turn is sent a think time after the answer before it"
    earliest_ns = np.where(table.after >= 0, 0, table.arrival_ns)
    return replace(table, arrival_ns=earliest_ns, notes=(*table.notes, note))


def poisson_arrivals(table: RequestTable, requests_per_s: float, seed: int) -> RequestTable:
    """Give requests without recorded times the arrivals of a Poisson process, in their order.

    Raises ScenarioError for a rate that is not above 0, or so low that arrivals take over 146
    years.
    """
    if not 0 < requests_per_s < np.inf:
        raise ScenarioError(f"requests_per_s is {requests_per_s}; expected a number above 0")
    rng = np.random.default_rng((seed, _ARRIVALS))
    arrival_ns = np.rint(
        np.cumsum(rng.standard_exponential(len(table)) * NS_PER_S / requests_per_s)
    )
    if len(table) and arrival_ns[-1] > LATEST_ARRIVAL_NS:
        raise ScenarioError(f"{requests_per_s:g} requests/s take more than 146 years")
    note = f"the file has no times: Poisson arrivals, {requests_per_s:g} requests/s"
    return replace(table, arrival_ns=arrival_ns.astype(np.int64), notes=(*table.notes, note))


def _session_starts_ns(
    sessions_per_h: float, duration_s: float | None, num_sessions: int | None, seed: int
) -> Int64:
    rng = np.random.default_rng((seed, _STARTS))
    mean_gap_s = 3600 / sessions_per_h
    expected = (num_sessions or 0) if duration_s is None else duration_s / mean_gap_s
    if expected > _MOST_SESSIONS:
        raise ScenarioError(f"more than {_MOST_SESSIONS:,} sessions; draw fewer")
    gaps: list[NDArray[np.float64]] = []
    total_s, drawn = 0.0, 0
    while drawn < (num_sessions or np.inf) and (duration_s is None or total_s < duration_s):
        gaps.append(rng.standard_exponential(256) * mean_gap_s)
        total_s += float(gaps[-1].sum())
        drawn += len(gaps[-1])
    starts_s = np.cumsum(np.concatenate(gaps))[:num_sessions]
    if duration_s is not None:
        starts_s = starts_s[starts_s < duration_s]
    if not len(starts_s):
        raise ScenarioError(
            f"no session starts within {duration_s:g} s at {sessions_per_h:g} sessions/h"
        )
    if starts_s[-1] * NS_PER_S > LATEST_ARRIVAL_NS:
        raise ScenarioError(f"{sessions_per_h:g} sessions/h take more than 146 years")
    return np.rint(starts_s * NS_PER_S).astype(np.int64)


def _times_drawn_before(drawn: Int64) -> Int64:
    """Return ``[m]`` how often each drawn session was drawn before."""
    order = np.argsort(drawn, kind="stable")
    _, first, counts = np.unique(drawn[order], return_index=True, return_counts=True)
    out = np.empty(len(drawn), np.int64)
    out[order] = np.arange(len(drawn)) - np.repeat(first, counts)
    return out


def _draw_note(num_known: int, num_drawn: int, per_h: float, duration_s: float | None) -> str:
    kept = "" if duration_s is None else f", their requests up to {duration_s:g} s"
    return (
        f"{num_drawn} sessions drawn with replacement from {num_known}, Poisson starts, "
        f"{per_h:g} sessions/h{kept}; a session drawn again shares no prefix with itself"
    )
