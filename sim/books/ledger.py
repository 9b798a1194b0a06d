"""The time books: each request's life, nanosecond by nanosecond, posted to accounts.

A request's time consists of waiting to be planned, its share of the runs it was part of (see
`sim.books.run_accounts`), and the reading of its last token. All sums are exact integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.accounts import (
    ADMISSION_QUEUE,
    API_SERVER,
    CACHE_LOAD,
    FAILURE_REWORK,
    KV_TRANSFER,
    LAUNCH_AND_HOST,
    PREEMPTION_RECOMPUTE,
    PREEMPTION_SWAP,
    SCHEDULING_WAIT,
    TIME_ACCOUNTS,
)
from sim.arrays import Int64
from sim.books.run_accounts import COLUMN, Share, add_shares
from sim.fleet.cluster import RunLog
from sim.protocols import StepCost
from sim.recorder import UNSET, DecodeLog, Residence
from sim.request import Status
from sim.step_log import StepLog


@dataclass(frozen=True, slots=True)
class TimeBooks:
    """Nanoseconds by request and account; rows of requests that did not finish are zero."""

    e2e_ns: Int64
    """``[n, len(TIME_ACCOUNTS)]``: the row of each finished request sums to its end-to-end time."""
    ttft_ns: Int64
    """``[n, len(TIME_ACCOUNTS)]`` up to the first token: each row sums to the TTFT."""


def time_books(log: RunLog) -> TimeBooks:
    """Post the time of every finished request, vectorized over runs and requests."""
    requests, decode = log.requests, log.requests.decode
    shape = (len(log.table), len(TIME_ACCOUNTS))
    books = TimeBooks(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    finished = np.frombuffer(requests.status, np.int8) == Status.FINISHED
    replica = np.frombuffer(requests.replica, np.int32)
    apart = _set_apart(requests, log)
    for index, (steps, pool) in enumerate(zip(log.steps, log.fleet.pool_of, strict=True)):
        chosen = np.flatnonzero(finished & (replica == index))
        if not len(chosen):
            continue
        rows = {
            name: np.frombuffer(getattr(requests, name), np.int64)[chosen]
            for name in ("arrival_ns", "seen_ns", "first_row", "first_token_row", "last_row")
        }
        # On this engine, requests that it handed over end with their first token.
        ends_here = ~requests.handed_over[chosen]
        rows["last_row"] = np.where(ends_here, rows["last_row"], rows["first_token_row"])
        rows["sent_ns"] = _sent_ns(requests.sent_ns, rows["arrival_ns"], chosen)
        for name in ("api_arrival_ns", "api_first_ns", "api_answer_ns"):
            rows[name] = _of_some(getattr(requests, name), chosen)
        rows["load_ns"] = _of_some(requests.load_ns, chosen)
        fetch_ns = {index: took_ns for index, (took_ns, _) in requests.fetched.items()}
        rows["fetch_ns"] = _of_some(fetch_ns, chosen)
        mine = _of_these(apart, chosen)
        books.ttft_ns[chosen], books.e2e_ns[chosen] = _post(rows, mine, steps, pool.cost)
    if decode is not None:
        _post_second_residences(books.e2e_ns, log, decode, finished)
    return books


def _sent_ns(again_ns: Mapping[int, int], arrival_ns: Int64, chosen: Int64) -> Int64:
    """Return when each of the chosen requests was sent for the last time."""
    if not again_ns:
        return arrival_ns
    last_ns = (again_ns.get(index, UNSET) for index in chosen.tolist())
    return np.maximum(arrival_ns, np.fromiter(last_ns, np.int64, len(chosen)))


def _of_some(values_ns: Mapping[int, int], chosen: Int64) -> Int64:
    """Return values recorded for a few requests, for the chosen ones; 0 where none is recorded."""
    if not values_ns:
        return np.zeros(len(chosen), np.int64)
    found = (values_ns.get(index, 0) for index in chosen.tolist())
    return np.fromiter(found, np.int64, len(chosen))


class _Apart(NamedTuple):
    """Closed intervals of rows, ``[m]`` each, whose time goes to an account of their own."""

    request: Int64
    start: Int64
    stop: Int64
    account: Int64
    """Column of the account."""


def _set_apart(residence: Residence, log: RunLog) -> _Apart:
    """Collect the intervals with accounts of their own, such as recomputation after a
    preemption."""
    intervals = {
        PREEMPTION_RECOMPUTE: np.array(residence.recomputes, np.int64).reshape(-1, 3),
        PREEMPTION_SWAP: np.array(residence.swapped, np.int64).reshape(-1, 3) - (0, 0, 1),
        SCHEDULING_WAIT: _waits_for_batch(residence, log),
    }
    account = np.repeat([COLUMN[a] for a in intervals], [len(rows) for rows in intervals.values()])
    request, start, stop = np.concatenate(list(intervals.values())).T
    return _Apart(request, start, stop, account)


def _waits_for_batch(residence: Residence, log: RunLog) -> Int64:
    """Return the time that finished requests waited for the rest of their batch
    (`sim.request.Gang`)."""
    num_answers, last_row = log.table.num_answers, log.requests.last_row
    waits = [
        (request, row + 1, last_row[request])
        for request, row in residence.last_token_row.items()
        if num_answers[request] == 1
    ]
    found = np.array(waits, np.int64).reshape(-1, 3)
    return found[found[:, 1] <= found[:, 2]]


def _of_these(apart: _Apart, chosen: Int64) -> _Apart:
    """Restrict intervals to chosen requests, and renumber the requests by their position there."""
    mine = np.isin(apart.request, chosen)
    request, *others = (column[mine] for column in apart)
    return _Apart(np.searchsorted(chosen, request), *others)


def _move(posted: Int64, moved: Int64, apart: _Apart) -> None:
    """Move the time of intervals from all accounts to the account of their own."""
    np.subtract.at(posted, apart.request, moved)
    np.add.at(posted, (apart.request, apart.account), moved.sum(axis=1))


def _post_second_residences(
    e2e_ns: Int64, log: RunLog, decode: DecodeLog, finished: NDArray[np.bool_]
) -> None:
    """Add the decode-side time of each request that was handed over, from its first token on."""
    replica, joined = np.frombuffer(decode.replica, np.int32), log.requests.handed_over
    apart = _set_apart(decode, log)
    columns = {
        "first": decode.first_row,
        "last": log.requests.last_row,
        "first_token_ns": log.requests.first_token_ns,
        "reserved_ns": decode.reserved_ns,
        "received_ns": decode.received_ns,
    }
    for index, (steps, pool) in enumerate(zip(log.steps, log.fleet.pool_of, strict=True)):
        chosen = np.flatnonzero(finished & joined & (replica == index))
        if not len(chosen):
            continue
        c = {name: np.frombuffer(column, np.int64)[chosen] for name, column in columns.items()}
        mine = _of_these(apart, chosen)
        posted = np.zeros((len(chosen), len(TIME_ACCOUNTS)), np.int64)
        moved = np.zeros((len(mine.request), len(TIME_ACCOUNTS)), np.int64)
        lived = [
            Share(posted, "decoding", c["first"], c["last"] + 1),
            Share(moved, "decoding", mine.start, mine.stop + 1),
        ]
        add_shares(steps, pool.cost, lived)
        _move(posted, moved, mine)
        _enter(posted, steps, c["first"], _account_of_first_row(mine, c["first"]))
        _leave(posted, steps, c["last"])
        # Blocks may be held, and KV pushed, long before the first token: only the exposed rest is
        # posted.
        held_ns = np.maximum(c["reserved_ns"], c["first_token_ns"])
        posted[:, COLUMN[ADMISSION_QUEUE]] += held_ns - c["first_token_ns"]
        posted[:, COLUMN[KV_TRANSFER]] += c["received_ns"] - held_ns
        posted[:, COLUMN[SCHEDULING_WAIT]] += steps.column("plan_ns")[c["first"]] - c["received_ns"]
        e2e_ns[chosen] += posted


def _post(
    rows: dict[str, Int64], apart: _Apart, steps: StepLog, cost: StepCost
) -> tuple[Int64, Int64]:
    """Return the accounts up to the first token and in all, two int64 ``[requests, accounts]``."""
    first, first_token, last = rows["first_row"], rows["first_token_row"], rows["last_row"]
    ttft = np.zeros((len(first), len(TIME_ACCOUNTS)), np.int64)
    after = np.zeros_like(ttft)
    split = np.clip(first_token[apart.request] + 1, apart.start, apart.stop + 1)
    early = np.zeros((len(split), len(TIME_ACCOUNTS)), np.int64)
    late = np.zeros_like(early)
    add_shares(
        steps,
        cost,
        [
            Share(ttft, "prefilling", first, first_token + 1),
            Share(after, "decoding", first_token + 1, last + 1),
            Share(early, "prefilling", apart.start, split),
            Share(late, "decoding", split, apart.stop + 1),
        ],
    )
    _move(ttft, early, apart)
    _move(after, late, apart)

    _enter(ttft, steps, first, _account_of_first_row(apart, first))
    ttft[:, COLUMN[FAILURE_REWORK]] += rows["sent_ns"] - rows["arrival_ns"]
    ttft[:, COLUMN[KV_TRANSFER]] += rows["fetch_ns"]
    before_ns = rows["fetch_ns"] + rows["api_arrival_ns"]
    ttft[:, COLUMN[SCHEDULING_WAIT]] += rows["seen_ns"] - rows["sent_ns"] - before_ns
    ttft[:, COLUMN[API_SERVER]] += rows["api_arrival_ns"]
    queued_ns = steps.column("plan_ns")[first] - rows["seen_ns"]
    ttft[:, COLUMN[ADMISSION_QUEUE]] += queued_ns - rows["load_ns"]
    ttft[:, COLUMN[CACHE_LOAD]] += rows["load_ns"]
    after += ttft
    _leave(ttft, steps, first_token, rows["api_first_ns"])
    _leave(after, steps, last, rows["api_answer_ns"])
    return ttft, after


def _account_of_first_row(apart: _Apart, first: Int64) -> Int64:
    """Return where each request's first row was posted: a joining request may lose its blocks at
    once."""
    account = np.full(len(first), COLUMN[LAUNCH_AND_HOST])
    # One that is swapped out and in within a step has an interval without rows.
    at_once = (apart.start == first[apart.request]) & (apart.stop >= apart.start)
    account[apart.request[at_once]] = apart.account[at_once]
    return account


def _enter(
    posted: Int64, steps: StepLog, first: Int64, account: Int64 | int = COLUMN[LAUNCH_AND_HOST]
) -> None:
    """Exclude the part of the first run that lies before the request was planned.

    The run began before, unless the engine was idle: that part is not the request's time, or it is
    the wait for the step in flight.
    """
    gpu_end_ns, plan_ns = steps.column("gpu_end_ns"), steps.column("plan_ns")[first]
    gpu_free_ns = np.where(first > 0, gpu_end_ns[first - 1], 0)
    posted[np.arange(len(first)), account] -= np.maximum(plan_ns - gpu_free_ns, 0)
    posted[:, COLUMN[SCHEDULING_WAIT]] += np.maximum(gpu_free_ns - plan_ns, 0)


def _leave(posted: Int64, steps: StepLog, row: Int64, sent_ns: Int64 | int = 0) -> None:
    """Post the time to read the outputs of the last run, and to send them to their clients."""
    read_ns = steps.row_visible_ns()[row] - steps.column("gpu_end_ns")[row]
    posted[:, COLUMN[LAUNCH_AND_HOST]] += read_ns - sent_ns
    posted[:, COLUMN[API_SERVER]] += sent_ns


def waits_only(account: str) -> bool:
    """Whether an account is time spent waiting for others, which has no evidence of its own."""
    return account in (ADMISSION_QUEUE, SCHEDULING_WAIT, FAILURE_REWORK)
