"""The time that runs of steps own, by account.

A run owns the time from the GPU end of the run before it to its own GPU end. In that time the GPU
was either busy with the run's kernels, which the cost model splits by account, or waiting for the
host. Cumulative sums over the runs give the time that a request, or a device, had of each account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.accounts import (
    GPU_ACCOUNTS,
    LAUNCH_AND_HOST,
    OTHERS_PREFILL,
    PREFILL_COMPUTE,
    REMAINDER,
    TIME_ACCOUNTS,
)
from sim.arrays import Int64
from sim.fleet.cluster import RunLog
from sim.protocols import StepCost
from sim.shape import clip_columns, clip_layers, rise_column
from sim.step_log import StepLog

COLUMN = {account: index for index, account in enumerate(TIME_ACCOUNTS)}


def gpu_time_ns(log: RunLog) -> Int64:
    """Return the busy GPU time of all engines by account, int64 ``[len(TIME_ACCOUNTS)]``.

    It covers every step and sums to the engines' ``gpu_ns`` exactly. Idle time belongs to no
    account of the GPU.
    """
    total_ns = np.zeros(len(TIME_ACCOUNTS), np.int64)
    for steps, pool in zip(log.steps, log.fleet.pool_of, strict=True):
        for columns in steps.chunks():
            total_ns += _of_whole_steps(columns, _shapes(columns, steps), pool.cost).sum(axis=0)
    return total_ns


@dataclass(frozen=True, slots=True)
class Share:
    """Adds the accounts of runs ``start[i]`` to ``stop[i]``, exclusive, to row i of a target."""

    target: Int64
    lived_as: Literal["prefilling", "decoding"]
    start: Int64
    stop: Int64


def add_shares(steps: StepLog, cost: StepCost, sums: list[Share]) -> None:
    """Carry out the sums chunk by chunk, because the accounts of all runs would not fit in
    memory."""
    points = [
        (s, row, sign, np.argsort(row, kind="stable"))
        for s in sums
        for row, sign in ((s.start, -1), (s.stop, 1))
    ]
    done = gpu_free_ns = 0
    totals = dict.fromkeys(("prefilling", "decoding"), np.zeros(len(TIME_ACCOUNTS), np.int64))
    apart = {account: np.array(waits)[:, [0, 2]] for account, waits in steps.waits.items()}
    for columns in steps.chunks():
        posted = _account(columns, steps, gpu_free_ns, cost)
        size = len(columns["steps"])
        for account, moves in apart.items():
            here = moves[(moves[:, 0] >= done) & (moves[:, 0] < done + size)]
            for of_runs in posted.values():  # what moves before a run is not the host's time
                of_runs[here[:, 0] - done, COLUMN[LAUNCH_AND_HOST]] -= here[:, 1]
                of_runs[here[:, 0] - done, COLUMN[account]] += here[:, 1]
        for lived_as, of_runs in posted.items():
            before = np.concatenate([[totals[lived_as]], totals[lived_as] + of_runs.cumsum(axis=0)])
            totals[lived_as] = before[-1]
            for s, row, sign, order in points:
                if s.lived_as == lived_as:
                    # A chunk provides the cumulative sums before each of its runs but the first,
                    # which the chunk before provides, and before the run that follows it.
                    low, high = np.searchsorted(row, (done + 1, done + size + 1), sorter=order)
                    chosen = order[low:high]
                    s.target[chosen] += sign * before[row[chosen] - done]
        done += size
        gpu_free_ns = int(columns["gpu_end_ns"][-1])


def _account(
    columns: dict[str, Int64], log: StepLog, gpu_free_ns: int, cost: StepCost
) -> dict[str, Int64]:
    """Return the time that each run owns by account, ``[runs, accounts]``, as a request in it
    lives it."""
    gpu_ns, steps = columns["gpu_ns"], columns["steps"]
    owned_ns = np.diff(columns["gpu_end_ns"], prepend=gpu_free_ns)
    whole = _shapes(columns, log)
    decodes_only = dict(whole)
    of_prefills = [name for name in whole if name.startswith("prefill_")]
    for name in of_prefills:
        decodes_only[name] = np.zeros(len(steps))
    decodes_only["logits"] = whole["decode_seqs"] + whole.get("draft_tokens", 0)

    others = np.where(columns["prefill_tokens"] > 0, COLUMN[OTHERS_PREFILL], COLUMN[REMAINDER])
    posted = {
        "prefilling": _of_whole_steps(columns, whole, cost),
        "decoding": _posted(cost, decodes_only, gpu_ns, steps, others),
    }
    for of_runs in posted.values():
        of_runs[:, COLUMN[LAUNCH_AND_HOST]] += owned_ns - gpu_ns
    return posted


def _shapes(columns: dict[str, Int64], log: StepLog) -> dict[str, NDArray[np.float64]]:
    """Return the mean shape of each run's steps by column, as the cost model takes it."""
    shapes = {name: columns[name].astype(np.float64) for name in log.shape_names}
    if log.speculates:
        _to_means(shapes, columns["steps"], log)
        return shapes
    # A run's context grows by one token per sequence and step; the run is priced at its middle.
    to_middle = (columns["steps"] - 1) / 2
    shapes["decode_context_tokens"] += shapes["decode_seqs"] * to_middle
    for cap_tokens in log.clip_tokens:
        clipped, growing, _, _ = clip_columns(cap_tokens)
        shapes[clipped] += shapes[growing] * to_middle
    return shapes


def _to_means(shapes: dict[str, NDArray[np.float64]], steps: Int64, log: StepLog) -> None:
    """Turn sums into means over each run's steps, whose contexts grow unevenly."""
    for clip in log.clip_tokens:
        rise = shapes["context_rise"] * clip_layers(clip)
        if isinstance(clip, int):
            rise = shapes[rise_column(clip)]
        name = clip_columns(clip)[0]
        shapes[name] = shapes[name] + rise / steps
    shapes["decode_context_tokens"] += shapes["context_rise"] / steps
    shapes["accepted_tokens"] /= steps


def _of_whole_steps(
    columns: dict[str, Int64], shapes: dict[str, NDArray[np.float64]], cost: StepCost
) -> Int64:
    """Return the GPU time of each run by account, ``[runs, accounts]``; a row sums to
    ``gpu_ns``."""
    # A power limit stretches compute-bound prefill beyond what the split knows.
    has_prefill = columns["prefill_tokens"] > 0
    rest_column = np.where(has_prefill, COLUMN[PREFILL_COMPUTE], COLUMN[REMAINDER])
    return _posted(cost, shapes, columns["gpu_ns"], columns["steps"], rest_column)


def _posted(
    cost: StepCost,
    shapes: dict[str, NDArray[np.float64]],
    gpu_ns: Int64,
    steps: Int64,
    rest_column: Int64,
) -> Int64:
    """Return GPU time by account; what the split does not cover goes to ``rest_column[run]``."""
    split = cost.split(shapes)
    posted = np.zeros((len(steps), len(TIME_ACCOUNTS)), np.int64)
    for account in GPU_ACCOUNTS:
        if account in split:
            posted[:, COLUMN[account]] = np.floor(split[account] * steps * 1e9).astype(np.int64)
    rest_ns = gpu_ns - posted.sum(axis=1)
    # Steps were rounded one by one, so a few ns may be missing: the largest account gives them.
    column = np.where(rest_ns < 0, posted.argmax(axis=1), rest_column)
    posted[np.arange(len(posted)), column] += rest_ns
    return posted
