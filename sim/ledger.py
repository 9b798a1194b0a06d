"""The time books: each request's life, nanosecond by nanosecond, posted to accounts.

A request's time is: waiting to be planned, its share of the runs it was part of (see
`sim.run_accounts`), and the reading of its last token. All sums are exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.accounts import (
    ADMISSION_QUEUE,
    FAILURE_REWORK,
    KV_TRANSFER,
    LAUNCH_AND_HOST,
    PREEMPTION_RECOMPUTE,
    PREEMPTION_SWAP,
    SCHEDULING_WAIT,
    TIME_ACCOUNTS,
)
from sim.cluster import RunLog
from sim.protocols import StepCost
from sim.recorder import UNSET, DecodeLog, RequestLog
from sim.request import Status
from sim.run_accounts import COLUMN, Share, add_shares
from sim.step_log import StepLog

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimeBooks:
    """Nanoseconds by request and account; rows of requests that did not finish are zero."""

    e2e_ns: Int64
    """``[n, len(TIME_ACCOUNTS)]``: each finished request's row sums to its end-to-end time."""
    ttft_ns: Int64
    """The same up to the first token: each row sums to the time to first token."""


def time_books(log: RunLog) -> TimeBooks:
    """Post the time of every finished request; vectorised over runs and requests."""
    requests = log.requests
    shape = (len(log.table), len(TIME_ACCOUNTS))
    books = TimeBooks(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    finished = np.frombuffer(requests.status, np.int8) == Status.FINISHED
    replica = np.frombuffer(requests.replica, np.int16)
    # Rows of closed intervals, (request, start, stop): they go to an account of their own.
    apart = _apart(requests)
    apart[SCHEDULING_WAIT] = _waits_for_batch(log)
    sent = np.array(list(requests.sent_ns.items()), np.int64).reshape(-1, 2)
    decode = requests.decode
    handed_over = None if decode is None else np.frombuffer(decode.first_row, np.int64) != UNSET
    for index, (steps, pool) in enumerate(zip(log.steps, log.fleet.pool_of, strict=True)):
        chosen = np.flatnonzero(finished & (replica == index))
        if not len(chosen):
            continue
        rows = {
            name: np.frombuffer(getattr(requests, name), np.int64)[chosen]
            for name in ("arrival_ns", "seen_ns", "first_row", "first_token_row", "last_row")
        }
        if handed_over is not None:  # here they end with their first token
            rows["last_row"] = np.where(
                handed_over[chosen], rows["first_token_row"], rows["last_row"]
            )
        rows["sent_ns"] = rows["arrival_ns"].copy()
        if len(sent):
            again = _of_these(sent, chosen)
            rows["sent_ns"][again[:, 0]] = again[:, 1]
        moved = {account: _of_these(intervals, chosen) for account, intervals in apart.items()}
        books.ttft_ns[chosen], books.e2e_ns[chosen] = _post(rows, moved, steps, pool.cost)
    if decode is not None:
        _post_second_residences(books.e2e_ns, log, decode, finished)
    return books


def _apart(log: RequestLog | DecodeLog) -> dict[str, Int64]:
    """By account: runs (request, start, stop), closed, in which a request was not served."""
    return {
        PREEMPTION_RECOMPUTE: np.array(log.recomputes, np.int64).reshape(-1, 3),
        PREEMPTION_SWAP: np.array(log.swapped, np.int64).reshape(-1, 3) - (0, 0, 1),
    }


def _waits_for_batch(log: RunLog) -> Int64:
    """What finished requests waited for the rest of their batch (`sim.together.Gang`)."""
    requests, samples = log.requests, log.table.samples
    waits = [
        (request, row + 1, requests.last_row[request])
        for request, row in requests.last_token_row.items()
        if samples is None or not samples.further(request)
    ]
    found = np.array(waits, np.int64).reshape(-1, 3)
    return found[found[:, 1] <= found[:, 2]]


def _of_these(intervals: Int64, chosen: Int64) -> Int64:
    """Those of (request, ...) whose request is chosen, by its position there."""
    found = intervals[np.isin(intervals[:, 0], chosen)]
    found[:, 0] = np.searchsorted(chosen, found[:, 0])
    return found


def _post_second_residences(
    e2e_ns: Int64, log: RunLog, decode: DecodeLog, finished: NDArray[np.bool_]
) -> None:
    """Add, to each request that was handed over, its time from the first token on."""
    replica = np.frombuffer(decode.replica, np.int16)
    joined = np.frombuffer(decode.first_row, np.int64) != UNSET
    apart = _apart(decode)
    first_token_ns = np.frombuffer(log.requests.first_token_ns, np.int64)
    for index, (steps, pool) in enumerate(zip(log.steps, log.fleet.pool_of, strict=True)):
        chosen = np.flatnonzero(finished & joined & (replica == index))
        if not len(chosen):
            continue
        first = np.frombuffer(decode.first_row, np.int64)[chosen]
        last = np.frombuffer(log.requests.last_row, np.int64)[chosen]
        posted = np.zeros((len(chosen), len(TIME_ACCOUNTS)), np.int64)
        redone, start, stop, column = _columns(
            {account: _of_these(intervals, chosen) for account, intervals in apart.items()}
        )
        moved = np.zeros((len(redone), len(TIME_ACCOUNTS)), np.int64)
        lived = [
            Share(posted, "decoding", first, last + 1),
            Share(moved, "decoding", start, stop + 1),
        ]
        add_shares(steps, pool.cost, lived)
        np.subtract.at(posted, redone, moved)
        np.add.at(posted, (redone, column), moved.sum(axis=1))
        _enter(posted, steps, first)
        _leave(posted, steps, last)
        reserved_ns = np.frombuffer(decode.reserved_ns, np.int64)[chosen]
        received_ns = np.frombuffer(decode.received_ns, np.int64)[chosen]
        # Blocks may be held, and KV pushed, long before the first token: only what is left shows.
        held_ns = np.maximum(reserved_ns, first_token_ns[chosen])
        posted[:, COLUMN[ADMISSION_QUEUE]] += held_ns - first_token_ns[chosen]
        posted[:, COLUMN[KV_TRANSFER]] += received_ns - held_ns
        posted[:, COLUMN[SCHEDULING_WAIT]] += steps.column("plan_ns")[first] - received_ns
        e2e_ns[chosen] += posted


def _columns(apart: dict[str, Int64]) -> tuple[Int64, Int64, Int64, Int64]:
    """Requests, starts, stops and columns of what is posted apart."""
    redone, start, stop = np.concatenate(list(apart.values())).T
    column = np.repeat([COLUMN[a] for a in apart], [len(rows) for rows in apart.values()])
    return redone, start, stop, column


def _post(
    rows: dict[str, Int64], apart: dict[str, Int64], steps: StepLog, cost: StepCost
) -> tuple[Int64, Int64]:
    """Accounts up to the first token and in all, two int64 ``[requests, accounts]``."""
    first, first_token, last = rows["first_row"], rows["first_token_row"], rows["last_row"]
    ttft = np.zeros((len(first), len(TIME_ACCOUNTS)), np.int64)
    after = np.zeros_like(ttft)
    # Being recomputed, say, is neither prefill nor decode.
    redone, start, stop, column = _columns(apart)
    split = np.clip(first_token[redone] + 1, start, stop + 1)
    early = np.zeros((len(redone), len(TIME_ACCOUNTS)), np.int64)
    late = np.zeros_like(early)
    add_shares(
        steps,
        cost,
        [
            Share(ttft, "prefilling", first, first_token + 1),
            Share(after, "decoding", first_token + 1, last + 1),
            Share(early, "prefilling", start, split),
            Share(late, "decoding", split, stop + 1),
        ],
    )
    for posted, moved in ((ttft, early), (after, late)):
        np.subtract.at(posted, redone, moved)
        np.add.at(posted, (redone, column), moved.sum(axis=1))

    _enter(ttft, steps, first)
    ttft[:, COLUMN[FAILURE_REWORK]] += rows["sent_ns"] - rows["arrival_ns"]
    ttft[:, COLUMN[SCHEDULING_WAIT]] += rows["seen_ns"] - rows["sent_ns"]
    ttft[:, COLUMN[ADMISSION_QUEUE]] += steps.column("plan_ns")[first] - rows["seen_ns"]
    after += ttft
    _leave(ttft, steps, first_token)
    _leave(after, steps, last)
    return ttft, after


def _enter(posted: Int64, steps: StepLog, first: Int64) -> None:
    """Leave out what the first run owns of the time before a request was planned.

    The run began before, unless the engine was idle: that part is not the request's time, or it
    is the wait for the step in flight.
    """
    gpu_end_ns, plan_ns = steps.column("gpu_end_ns"), steps.column("plan_ns")[first]
    gpu_free_ns = np.where(first > 0, gpu_end_ns[first - 1], 0)
    posted[:, COLUMN[LAUNCH_AND_HOST]] -= np.maximum(plan_ns - gpu_free_ns, 0)
    posted[:, COLUMN[SCHEDULING_WAIT]] += np.maximum(gpu_free_ns - plan_ns, 0)


def _leave(posted: Int64, steps: StepLog, row: Int64) -> None:
    """The reading of what this run sampled."""
    read_ns = steps.row_visible_ns()[row] - steps.column("gpu_end_ns")[row]
    posted[:, COLUMN[LAUNCH_AND_HOST]] += read_ns


def waits_only(account: str) -> bool:
    """Whether an account is time spent waiting, or lost: it has no evidence of its own."""
    return account in (ADMISSION_QUEUE, SCHEDULING_WAIT, FAILURE_REWORK)
