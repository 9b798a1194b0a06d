"""The time books: each request's life, nanosecond by nanosecond, posted to accounts.

A run of steps owns the time from the GPU end of the run before it to its own GPU end. In it the
GPU was either busy with the run's kernels, which the cost model splits by account, or waiting for
the host. A request's time is then: waiting to be planned, the runs it was part of, and the reading
of its last token; cumulative sums over the runs give its share. All sums are exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.accounts import (
    ADMISSION_QUEUE,
    GPU_ACCOUNTS,
    LAUNCH_AND_HOST,
    OTHERS_PREFILL,
    PREEMPTION_RECOMPUTE,
    REMAINDER,
    SCHEDULING_WAIT,
    TIME_ACCOUNTS,
)
from sim.cluster import RunLog
from sim.protocols import StepCost
from sim.recorder import StepLog
from sim.request import Status
from sim.shape import StepShape

Int64 = NDArray[np.int64]
_COLUMN = {account: index for index, account in enumerate(TIME_ACCOUNTS)}


@dataclass(frozen=True, slots=True)
class TimeBooks:
    """Nanoseconds by request and account; rows of requests that did not finish are zero."""

    e2e_ns: Int64
    """``[n, len(TIME_ACCOUNTS)]``: each finished request's row sums to its end-to-end time."""
    ttft_ns: Int64
    """The same up to the first token: each row sums to the time to first token."""


@dataclass(frozen=True, slots=True)
class _StepBooks:
    """One engine's runs by account. Cumulative, with a leading zero row."""

    prefilling: Int64
    """``[rows + 1, accounts]`` as a request that prefills in them lives them."""
    decoding: Int64
    """The same for a request that decodes in them: others' prefill apart."""
    gpu_end_ns: Int64
    plan_ns: Int64
    visible_ns: Int64
    """``[rows]`` when the outputs of each run's last step became visible."""


def time_books(log: RunLog) -> TimeBooks:
    """Post the time of every finished request; vectorised over runs and requests."""
    requests = log.requests
    shape = (len(log.table), len(TIME_ACCOUNTS))
    books = TimeBooks(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    finished = np.frombuffer(requests.status, np.int8) == Status.FINISHED
    replica = np.frombuffer(requests.replica, np.int16)
    recomputes = np.array(requests.recomputes, np.int64).reshape(-1, 3)
    for index, steps in enumerate(log.steps):
        chosen = np.flatnonzero(finished & (replica == index))
        if not len(chosen):
            continue
        step_books = _step_books(steps, log.pool.cost)
        rows = {
            name: np.frombuffer(getattr(requests, name), np.int64)[chosen]
            for name in ("arrival_ns", "seen_ns", "first_row", "first_token_row", "last_row")
        }
        redone = recomputes[np.isin(recomputes[:, 0], chosen)]
        redone[:, 0] = np.searchsorted(chosen, redone[:, 0])
        books.e2e_ns[chosen] = _post(rows, rows["last_row"], redone, step_books)
        books.ttft_ns[chosen] = _post(rows, rows["first_token_row"], redone, step_books)
    return books


def _post(rows: dict[str, Int64], end_row: Int64, recomputes: Int64, books: _StepBooks) -> Int64:
    """Accounts of requests from arrival to the visibility of ``end_row``, ``[n, accounts]``."""
    first, first_token = rows["first_row"], rows["first_token_row"]
    posted = books.prefilling[first_token + 1] - books.prefilling[first]
    posted += books.decoding[end_row + 1] - books.decoding[first_token + 1]

    # Being recomputed is neither prefill nor decode: those runs go to an account of their own.
    for request, start, stop in recomputes:
        if start > end_row[request]:
            continue
        stop = min(stop, end_row[request])
        split = min(max(first_token[request] + 1, start), stop + 1)
        moved = books.prefilling[split] - books.prefilling[start]
        moved += books.decoding[stop + 1] - books.decoding[split]
        posted[request] -= moved
        posted[request, _COLUMN[PREEMPTION_RECOMPUTE]] += moved.sum()

    # The first run began before the request was planned, unless the engine was idle: that part
    # is not the request's time, or it is the wait for the step in flight.
    gpu_free_ns = np.where(first > 0, books.gpu_end_ns[first - 1], 0)
    plan_ns = books.plan_ns[first]
    posted[:, _COLUMN[LAUNCH_AND_HOST]] -= np.maximum(plan_ns - gpu_free_ns, 0)
    posted[:, _COLUMN[SCHEDULING_WAIT]] += np.maximum(gpu_free_ns - plan_ns, 0)
    posted[:, _COLUMN[SCHEDULING_WAIT]] += rows["seen_ns"] - rows["arrival_ns"]
    posted[:, _COLUMN[ADMISSION_QUEUE]] += plan_ns - rows["seen_ns"]
    posted[:, _COLUMN[LAUNCH_AND_HOST]] += books.visible_ns[end_row] - books.gpu_end_ns[end_row]
    return posted


def _step_books(steps: StepLog, cost: StepCost) -> _StepBooks:
    columns = steps.columns()
    gpu_end_ns, gpu_ns = columns["gpu_end_ns"], columns["gpu_ns"]
    owned_ns = np.diff(gpu_end_ns, prepend=0)
    whole = {name: columns[name].astype(np.float64) for name in StepShape._fields}
    # A run's context grows by one a sequence a step; it is priced at its middle.
    whole["decode_context_tokens"] += whole["decode_seqs"] * (columns["steps"] - 1) / 2
    decodes_only = dict(whole)
    for name in ("prefill_seqs", "prefill_tokens", "prefill_context_tokens", "prefill_pairs"):
        decodes_only[name] = np.zeros(len(steps))
    decodes_only["logits"] = whole["decode_seqs"]

    prefilling = _posted(cost, whole, columns["steps"])
    decoding = _posted(cost, decodes_only, columns["steps"])
    remainder = np.full(len(steps), _COLUMN[REMAINDER])
    others = np.full(len(steps), _COLUMN[OTHERS_PREFILL])
    _post_rest(prefilling, gpu_ns, remainder)
    _post_rest(decoding, gpu_ns, np.where(columns["prefill_tokens"] > 0, others, remainder))
    for posted in (prefilling, decoding):
        posted[:, _COLUMN[LAUNCH_AND_HOST]] += owned_ns - gpu_ns

    last_step = np.cumsum(columns["steps"]) - 1
    visible_ns = steps.step_visible_ns()
    known = np.minimum(last_step, len(visible_ns) - 1)  # a cut run's last steps are never read
    return _StepBooks(
        prefilling=_cumulative(prefilling),
        decoding=_cumulative(decoding),
        gpu_end_ns=gpu_end_ns,
        plan_ns=columns["plan_ns"],
        visible_ns=visible_ns[known] if len(visible_ns) else np.zeros(len(steps), np.int64),
    )


def _posted(cost: StepCost, shapes: dict[str, NDArray[np.float64]], steps: Int64) -> Int64:
    split = cost.split(shapes)
    posted = np.zeros((len(steps), len(TIME_ACCOUNTS)), np.int64)
    for account in GPU_ACCOUNTS:
        seconds = split.get(account)
        if seconds is not None:
            posted[:, _COLUMN[account]] = np.floor(seconds * steps * 1e9).astype(np.int64)
    return posted


def _post_rest(posted: Int64, gpu_ns: Int64, column: Int64) -> None:
    """Make every row sum to its GPU time: what is left goes to ``column[row]``.

    Steps were rounded one by one, so a few ns may be missing instead: the largest account gives.
    """
    rest_ns = gpu_ns - posted.sum(axis=1)
    largest = posted.argmax(axis=1)
    posted[np.arange(len(posted)), np.where(rest_ns < 0, largest, column)] += rest_ns


def _cumulative(posted: Int64) -> Int64:
    zero = np.zeros((1, posted.shape[1]), np.int64)
    return np.concatenate([zero, np.cumsum(posted, axis=0)])


def waits_only(account: str) -> bool:
    """Whether an account is time spent waiting for others: it has no evidence of its own."""
    return account in (ADMISSION_QUEUE, SCHEDULING_WAIT)
