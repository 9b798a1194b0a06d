"""Reshape a workload: stretch its time, cut it, repeat it, close its loop.

All functions leave their argument alone, return a table with a note of what was done, and raise
ScenarioError for arguments that make no sense.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sim.clock import NS_PER_S, to_s
from sim.errors import ScenarioError
from sim.request_table import Int64, RequestTable
from workloads.arrivals import LATEST_ARRIVAL_NS
from workloads.chains import take_chains


def mean_rate_per_s(table: RequestTable) -> float:
    """Gaps per second from the first arrival to the last, (n - 1) / span.

    Raises ScenarioError where there is none: fewer than two requests, or all at once.
    """
    span_ns = int(table.arrival_ns[-1] - table.arrival_ns[0]) if len(table) else 0
    if span_ns == 0:
        raise ScenarioError(f"{table.source}: no rate, all requests arrive at one time")
    return (len(table) - 1) * NS_PER_S / span_ns


def scale_rate(table: RequestTable, requests_per_s: float) -> RequestTable:
    """Stretch or squeeze time so that `mean_rate_per_s` is the given one; the shape is kept."""
    if not 0 < requests_per_s < math.inf:
        raise ScenarioError(f"requests_per_s is {requests_per_s}; expected a number above 0")
    factor = mean_rate_per_s(table) / requests_per_s
    return _stretch(table, factor, f"rate scaled to {requests_per_s:g} requests/s")


def scale_time(table: RequestTable, factor: float) -> RequestTable:
    """Multiply every arrival by ``factor``: 2 halves the rate."""
    if not 0 < factor < math.inf:
        raise ScenarioError(f"time factor is {factor}; expected a number above 0")
    return _stretch(table, factor, f"time scaled by {factor:g}")


def window(table: RequestTable, start_s: float, end_s: float) -> RequestTable:
    """The requests that arrive in ``[start_s, end_s)``, with ``start_s`` as the new 0."""
    if not 0 <= start_s < end_s:
        raise ScenarioError(f"window from {start_s} to {end_s} s; expected 0 <= start < end")
    start_ns, end_ns = (
        round(min(t_s, to_s(LATEST_ARRIVAL_NS)) * NS_PER_S) for t_s in (start_s, end_s)
    )
    first, last = np.searchsorted(table.arrival_ns, (start_ns, end_ns))
    return _take(
        table,
        np.arange(first, last),
        table.arrival_ns[first:last] - start_ns,
        f"window from {start_s:g} to {end_s:g} s",
    )


def limit(table: RequestTable, n: int) -> RequestTable:
    """The first ``n`` requests, or all where there are fewer."""
    if n < 1:
        raise ScenarioError(f"limit is {n} requests; expected at least 1")
    if n >= len(table):
        return table
    note = f"first {n} of {len(table)} requests"
    return _take(table, np.arange(n), table.arrival_ns[:n], note)


def repeat(table: RequestTable, times: int, *, fresh_prefixes: bool = True) -> RequestTable:
    """``times`` copies one after another, each a mean gap after the last arrival before it.

    With ``fresh_prefixes`` every copy has block ids of its own (all are renumbered), so it finds
    nothing of an earlier copy in a prefix cache; otherwise copies share theirs. Requests that
    arrive all at once stay so, in every copy.
    """
    if times < 1:
        raise ScenarioError(f"repeat is {times} times; expected at least 1")
    n = len(table)
    if times == 1 or n == 0:
        return table
    span_ns = int(table.arrival_ns[-1] - table.arrival_ns[0])
    period_ns = span_ns + round(span_ns / max(n - 1, 1))
    if int(table.arrival_ns[-1]) + (times - 1) * period_ns > LATEST_ARRIVAL_NS:
        raise ScenarioError(f"repeat is {times} times; that is over 146 years of arrivals")
    shared = "" if table.chains is None or fresh_prefixes else ", sharing prefixes"
    copies = _take(
        table,
        np.tile(np.arange(n), times),
        np.tile(table.arrival_ns, times) + np.repeat(np.arange(times) * period_ns, n),
        f"repeated {times} times{shared}",
    )
    if table.chains is None or copies.chains is None or not fresh_prefixes:
        return copies
    distinct, ids = np.unique(table.chains.ids, return_inverse=True)
    copy_of_id = np.repeat(np.arange(times), len(ids))
    fresh_ids = np.tile(ids, times) + copy_of_id * len(distinct)
    return replace(copies, chains=replace(copies.chains, ids=fresh_ids))


def with_concurrency(table: RequestTable, n: int) -> RequestTable:
    """Close the loop: at most ``n`` requests in flight (see `RequestTable.max_concurrency`)."""
    if n < 1:
        raise ScenarioError(f"max_concurrency is {n}; expected at least 1")
    return replace(table, max_concurrency=n, notes=(*table.notes, f"at most {n} in flight"))


def _stretch(table: RequestTable, factor: float, note: str) -> RequestTable:
    if len(table) and float(table.arrival_ns[-1]) * factor > LATEST_ARRIVAL_NS:
        raise ScenarioError(f"{note}: the last request would arrive after more than 146 years")
    arrival_ns = np.rint(table.arrival_ns * factor).astype(np.int64)
    return replace(table, arrival_ns=arrival_ns, notes=(*table.notes, note))


def _take(table: RequestTable, index: Int64, arrival_ns: Int64, note: str) -> RequestTable:
    """The requests ``index`` names, at new times."""
    return replace(
        table,
        arrival_ns=arrival_ns,
        prompt_tokens=table.prompt_tokens[index],
        output_tokens=table.output_tokens[index],
        priority=table.priority[index],
        chains=None if table.chains is None else take_chains(table.chains, index),
        class_index=None if table.class_index is None else table.class_index[index],
        notes=(*table.notes, note),
    )
