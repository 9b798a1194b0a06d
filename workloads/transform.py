"""Reshape a workload: stretch its time, cut it, repeat it, limit its concurrency.

All functions leave their argument alone, return a table with a note of what was done, and raise
ScenarioError for arguments out of range. Sessions stay whole if they can: ``after`` names the same
requests as before, think times stay, and a turn whose previous turn was cut becomes a first turn.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sim.arrays import Int64
from sim.clock import NS_PER_S, to_s
from sim.errors import ScenarioError
from sim.request_table import RequestTable
from workloads.chains import copy_chains, take_chains
from workloads.generator.arrivals import LATEST_ARRIVAL_NS


def mean_rate_per_s(table: RequestTable) -> float:
    """Return the mean rate, as gaps between arrivals over the time from first to last.

    If later turns wait for earlier ones, it is the rate of the first turns times the requests per
    session. Raises ScenarioError if there are fewer than two arrivals, or all arrive at once.
    """
    arrival_ns = table.arrival_ns if table.after is None else table.arrival_ns[table.after < 0]
    span_ns = int(arrival_ns[-1] - arrival_ns[0]) if len(arrival_ns) else 0
    if span_ns == 0:
        raise ScenarioError(f"{table.source}: no rate, all requests arrive at one time")
    return (len(arrival_ns) - 1) * NS_PER_S / span_ns * (len(table) / len(arrival_ns))


def scale_rate(table: RequestTable, requests_per_s: float) -> RequestTable:
    """Stretch or squeeze the arrivals to a mean rate (`mean_rate_per_s`); their pattern is kept."""
    if not 0 < requests_per_s < math.inf:
        raise ScenarioError(f"requests_per_s is {requests_per_s}; expected a number above 0")
    factor = mean_rate_per_s(table) / requests_per_s
    return _stretch(table, factor, f"rate scaled to {requests_per_s:g} requests/s")


def window(table: RequestTable, start_s: float, end_s: float) -> RequestTable:
    """Keep the requests that arrive in ``[start_s, end_s)``, and make ``start_s`` the new 0.

    A turn without a time of its own counts as arriving with the turn before it.
    """
    if not 0 <= start_s < end_s:
        raise ScenarioError(f"window from {start_s} to {end_s} s; expected 0 <= start < end")
    start_ns, end_ns = (
        round(min(t_s, to_s(LATEST_ARRIVAL_NS)) * NS_PER_S) for t_s in (start_s, end_s)
    )
    earliest_ns = earliest_arrival_ns(table)
    index = np.flatnonzero((earliest_ns >= start_ns) & (earliest_ns < end_ns))
    arrival_ns = np.maximum(table.arrival_ns[index] - start_ns, 0)
    return take(table, index, arrival_ns, f"window from {start_s:g} to {end_s:g} s")


def limit(table: RequestTable, n: int) -> RequestTable:
    """Keep the first ``n`` requests, or all if there are fewer."""
    if n < 1:
        raise ScenarioError(f"limit is {n} requests; expected at least 1")
    if n >= len(table):
        return table
    note = f"first {n} of {len(table)} requests"
    return take(table, np.arange(n), table.arrival_ns[:n], note)


def repeat(table: RequestTable, times: int, *, fresh_prefixes: bool = True) -> RequestTable:
    """Put ``times`` copies one after another, each a mean gap after the last arrival before it.

    Each copy has sessions of its own. With ``fresh_prefixes`` it has block ids of its own too, so
    that it hits nothing of an earlier copy in a prefix cache; otherwise copies share their ids.
    Requests that arrive all at once do so in every copy.
    """
    if times < 1:
        raise ScenarioError(f"repeat is {times} times; expected at least 1")
    n = len(table)
    if times == 1 or n == 0:
        return table
    last_ns = int(table.arrival_ns.max())
    span_ns = last_ns - int(table.arrival_ns[0])
    period_ns = span_ns + round(span_ns / max(n - 1, 1))
    if last_ns + (times - 1) * period_ns > LATEST_ARRIVAL_NS:
        raise ScenarioError(f"repeat is {times} times; that is over 146 years of arrivals")
    shared = "" if table.chains is None or fresh_prefixes else ", sharing prefixes"
    index, copy = np.tile(np.arange(n), times), np.repeat(np.arange(times), n)
    table_once = replace(table, chains=None, after=None, think_ns=None)
    copies = take(
        table_once,
        index,
        np.tile(table.arrival_ns, times) + copy * period_ns,
        f"repeated {times} times{shared}",
    )
    if table.session is not None:
        copies = replace(
            copies, session=table.session[index] + copy * (int(table.session.max()) + 1)
        )
    if table.after is not None and table.think_ns is not None:
        after = table.after[index]
        after = np.where(after >= 0, after + copy * n, -1)
        copies = replace(copies, after=after, think_ns=table.think_ns[index])
    if table.chains is None:
        return copies
    if not fresh_prefixes:
        copy = np.zeros_like(copy)
    return replace(copies, chains=copy_chains(table.chains, index, copy))


def with_concurrency(table: RequestTable, n: int) -> RequestTable:
    """Limit the requests in flight to ``n`` (see `RequestTable.max_concurrency`)."""
    if n < 1:
        raise ScenarioError(f"max_concurrency is {n}; expected at least 1")
    if table.after is not None:
        raise ScenarioError(
            f"max_concurrency is {n}, but later turns wait for earlier ones: sessions close the "
            "loop already; replay them open"
        )
    return replace(table, max_concurrency=n, notes=(*table.notes, f"at most {n} in flight"))


def noted(table: RequestTable, note: str) -> RequestTable:
    """Return the table with one more note."""
    return replace(table, notes=(*table.notes, note))


def earliest_arrival_ns(table: RequestTable) -> Int64:
    """Return ``[n]`` earliest possible arrivals: no request comes before the one it waits for."""
    if table.after is None:
        return table.arrival_ns
    earliest_ns = table.arrival_ns.copy()
    before = np.where(table.after >= 0, table.after, np.arange(len(table)))
    while True:  # each pass doubles how many turns back are looked at
        np.maximum(earliest_ns, earliest_ns[before], out=earliest_ns)
        further = before[before]
        if np.array_equal(further, before):
            return earliest_ns
        before = further


def take(table: RequestTable, index: Int64, arrival_ns: Int64, note: str) -> RequestTable:
    """Return the requests that ``index`` names, each once, at new times."""
    after, think_ns = None, None
    if table.after is not None and table.think_ns is not None:
        place = np.full(len(table), -1, np.int64)
        place[index] = np.arange(len(index))
        after = table.after[index]
        after = np.where(after >= 0, place[after], -1)
        think_ns = table.think_ns[index]
        if not (after >= 0).any():
            after = think_ns = None
    return replace(
        table,
        arrival_ns=arrival_ns,
        prompt_tokens=table.prompt_tokens[index],
        output_tokens=table.output_tokens[index],
        priority=table.priority[index],
        chains=None if table.chains is None else take_chains(table.chains, index),
        after=after,
        think_ns=think_ns,
        session=None if table.session is None else table.session[index],
        class_index=None if table.class_index is None else table.class_index[index],
        notes=(*table.notes, note),
    )


def _stretch(table: RequestTable, factor: float, note: str) -> RequestTable:
    if len(table) and float(table.arrival_ns.max()) * factor > LATEST_ARRIVAL_NS:
        raise ScenarioError(f"{note}: the last request would arrive after more than 146 years")
    arrival_ns = np.rint(table.arrival_ns * factor).astype(np.int64)
    return replace(table, arrival_ns=arrival_ns, notes=(*table.notes, note))
