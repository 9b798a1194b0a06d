"""The time books: each request's life, nanosecond by nanosecond, posted to accounts.

A run of steps owns the time from the GPU end of the run before it to its own GPU end. In it the
GPU was either busy with the run's kernels, which the cost model splits by account, or waiting for
the host. A request's time is then: waiting to be planned, the runs it was part of, and the reading
of its last token; cumulative sums over the runs give its share. All sums are exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.accounts import (
    ADMISSION_QUEUE,
    GPU_ACCOUNTS,
    LAUNCH_AND_HOST,
    OTHERS_PREFILL,
    PREEMPTION_RECOMPUTE,
    PREFILL_COMPUTE,
    REMAINDER,
    SCHEDULING_WAIT,
    TIME_ACCOUNTS,
)
from sim.cluster import RunLog
from sim.protocols import StepCost
from sim.request import Status
from sim.shape import Clip, clip_columns, shape_columns
from sim.step_log import StepLog

Int64 = NDArray[np.int64]
_COLUMN = {account: index for index, account in enumerate(TIME_ACCOUNTS)}


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
    recomputes = np.array(requests.recomputes, np.int64).reshape(-1, 3)
    for index, steps in enumerate(log.steps):
        chosen = np.flatnonzero(finished & (replica == index))
        if not len(chosen):
            continue
        rows = {
            name: np.frombuffer(getattr(requests, name), np.int64)[chosen]
            for name in ("arrival_ns", "seen_ns", "first_row", "first_token_row", "last_row")
        }
        redone = recomputes[np.isin(recomputes[:, 0], chosen)]
        redone[:, 0] = np.searchsorted(chosen, redone[:, 0])
        books.ttft_ns[chosen], books.e2e_ns[chosen] = _post(rows, redone, steps, log.pool.cost)
    return books


def gpu_time_ns(log: RunLog) -> Int64:
    """Busy GPU time of all engines by account, int64 ``[len(TIME_ACCOUNTS)]``.

    Over every step, whosever it was; sums to the engines' ``gpu_ns`` exactly. Idle time is no
    account of the GPU's.
    """
    total_ns = np.zeros(len(TIME_ACCOUNTS), np.int64)
    for steps in log.steps:
        for columns in steps.chunks():
            total_ns += _of_whole_steps(
                columns, _shapes(columns, steps.clip_tokens), log.pool.cost
            ).sum(axis=0)
    return total_ns


def _post(
    rows: dict[str, Int64], recomputes: Int64, steps: StepLog, cost: StepCost
) -> tuple[Int64, Int64]:
    """Accounts up to the first token and in all, two int64 ``[requests, accounts]``."""
    first, first_token, last = rows["first_row"], rows["first_token_row"], rows["last_row"]
    ttft = np.zeros((len(first), len(TIME_ACCOUNTS)), np.int64)
    after = np.zeros_like(ttft)
    # Being recomputed is neither prefill nor decode: those runs go to an account of their own.
    redone, start, stop = recomputes.T
    split = np.clip(first_token[redone] + 1, start, stop + 1)
    early = np.zeros((len(redone), len(TIME_ACCOUNTS)), np.int64)
    late = np.zeros_like(early)
    _gather(
        steps,
        cost,
        [
            _Sum(ttft, "prefilling", first, first_token + 1),
            _Sum(after, "decoding", first_token + 1, last + 1),
            _Sum(early, "prefilling", start, split),
            _Sum(late, "decoding", split, stop + 1),
        ],
    )
    for posted, moved in ((ttft, early), (after, late)):
        np.subtract.at(posted, redone, moved)
        np.add.at(posted, (redone, _COLUMN[PREEMPTION_RECOMPUTE]), moved.sum(axis=1))

    # The first run began before the request was planned, unless the engine was idle: that part
    # is not the request's time, or it is the wait for the step in flight.
    gpu_end_ns, plan_ns = steps.column("gpu_end_ns"), steps.column("plan_ns")[first]
    gpu_free_ns = np.where(first > 0, gpu_end_ns[first - 1], 0)
    ttft[:, _COLUMN[LAUNCH_AND_HOST]] -= np.maximum(plan_ns - gpu_free_ns, 0)
    ttft[:, _COLUMN[SCHEDULING_WAIT]] += np.maximum(gpu_free_ns - plan_ns, 0)
    ttft[:, _COLUMN[SCHEDULING_WAIT]] += rows["seen_ns"] - rows["arrival_ns"]
    ttft[:, _COLUMN[ADMISSION_QUEUE]] += plan_ns - rows["seen_ns"]
    after += ttft
    visible_ns = steps.row_visible_ns()
    for posted, row in ((ttft, first_token), (after, last)):
        posted[:, _COLUMN[LAUNCH_AND_HOST]] += visible_ns[row] - gpu_end_ns[row]
    return ttft, after


@dataclass(frozen=True, slots=True)
class _Sum:
    """Adds the accounts of runs ``start[i]`` to ``stop[i]``, exclusive, to row i of a target."""

    target: Int64
    lived_as: Literal["prefilling", "decoding"]
    start: Int64
    stop: Int64


def _gather(steps: StepLog, cost: StepCost, sums: list[_Sum]) -> None:
    """Carry out the sums, a chunk of runs at a time: all runs' accounts would not fit."""
    points = [
        (s, row, sign, np.argsort(row, kind="stable"))
        for s in sums
        for row, sign in ((s.start, -1), (s.stop, 1))
    ]
    done = gpu_free_ns = 0
    totals = dict.fromkeys(("prefilling", "decoding"), np.zeros(len(TIME_ACCOUNTS), np.int64))
    for columns in steps.chunks():
        posted = _account(columns, steps.clip_tokens, gpu_free_ns, cost)
        size = len(columns["steps"])
        for lived_as, of_runs in posted.items():
            before = np.concatenate([[totals[lived_as]], totals[lived_as] + of_runs.cumsum(axis=0)])
            totals[lived_as] = before[-1]
            for s, row, sign, order in points:
                if s.lived_as == lived_as:
                    # A chunk answers for the sums before each of its runs but the first, which
                    # the chunk before it has answered for, and before the run that follows it.
                    low, high = np.searchsorted(row, (done + 1, done + size + 1), sorter=order)
                    chosen = order[low:high]
                    s.target[chosen] += sign * before[row[chosen] - done]
        done += size
        gpu_free_ns = int(columns["gpu_end_ns"][-1])


def _account(
    columns: dict[str, Int64], clip_tokens: tuple[Clip, ...], gpu_free_ns: int, cost: StepCost
) -> dict[str, Int64]:
    """The time each run owns by account, ``[runs, accounts]``, as lived by a request in it."""
    gpu_ns, steps = columns["gpu_ns"], columns["steps"]
    owned_ns = np.diff(columns["gpu_end_ns"], prepend=gpu_free_ns)
    whole = _shapes(columns, clip_tokens)
    decodes_only = dict(whole)
    of_prefills = [name for name in whole if name.startswith("prefill_")]
    for name in of_prefills:
        decodes_only[name] = np.zeros(len(steps))
    decodes_only["logits"] = whole["decode_seqs"]

    others = np.where(columns["prefill_tokens"] > 0, _COLUMN[OTHERS_PREFILL], _COLUMN[REMAINDER])
    posted = {
        "prefilling": _of_whole_steps(columns, whole, cost),
        "decoding": _posted(cost, decodes_only, gpu_ns, steps, others),
    }
    for of_runs in posted.values():
        of_runs[:, _COLUMN[LAUNCH_AND_HOST]] += owned_ns - gpu_ns
    return posted


def _shapes(
    columns: dict[str, Int64], clip_tokens: tuple[Clip, ...]
) -> dict[str, NDArray[np.float64]]:
    """The mean shape of each run's steps, by column, as the cost model takes it."""
    shapes = {name: columns[name].astype(np.float64) for name in shape_columns(clip_tokens)}
    # A run's context grows by one a sequence a step; it is priced at its middle.
    to_middle = (columns["steps"] - 1) / 2
    shapes["decode_context_tokens"] += shapes["decode_seqs"] * to_middle
    for cap_tokens in clip_tokens:
        clipped, growing, _, _ = clip_columns(cap_tokens)
        shapes[clipped] += shapes[growing] * to_middle
    return shapes


def _of_whole_steps(
    columns: dict[str, Int64], shapes: dict[str, NDArray[np.float64]], cost: StepCost
) -> Int64:
    """GPU time of each run by account, ``[runs, accounts]``; a row sums to the run's ``gpu_ns``."""
    # A power limit stretches compute-bound prefill beyond what the split knows of.
    has_prefill = columns["prefill_tokens"] > 0
    rest_column = np.where(has_prefill, _COLUMN[PREFILL_COMPUTE], _COLUMN[REMAINDER])
    return _posted(cost, shapes, columns["gpu_ns"], columns["steps"], rest_column)


def _posted(
    cost: StepCost,
    shapes: dict[str, NDArray[np.float64]],
    gpu_ns: Int64,
    steps: Int64,
    rest_column: Int64,
) -> Int64:
    """GPU time by account; what the split does not cover goes to ``rest_column[run]``."""
    split = cost.split(shapes)
    posted = np.zeros((len(steps), len(TIME_ACCOUNTS)), np.int64)
    for account in GPU_ACCOUNTS:
        seconds = split.get(account)
        if seconds is not None:
            posted[:, _COLUMN[account]] = np.floor(seconds * steps * 1e9).astype(np.int64)
    rest_ns = gpu_ns - posted.sum(axis=1)
    # Steps were rounded one by one, so a few ns may be missing instead: the largest account gives.
    column = np.where(rest_ns < 0, posted.argmax(axis=1), rest_column)
    posted[np.arange(len(posted)), column] += rest_ns
    return posted


def waits_only(account: str) -> bool:
    """Whether an account is time spent waiting for others: it has no evidence of its own."""
    return account in (ADMISSION_QUEUE, SCHEDULING_WAIT)
