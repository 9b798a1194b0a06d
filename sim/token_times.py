"""Every token's time, recovered from the log: it is there when its step's output is visible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.cluster import RunLog
from sim.recorder import StepLog
from sim.request import Status

Int64 = NDArray[np.int64]


def token_times_ns(log: RunLog, request: int) -> Int64:
    """When each output token of a finished request became visible, int64 ``[output_tokens]``."""
    requests = log.requests
    if requests.status[request] != Status.FINISHED or not log.table.output_tokens[request]:
        return np.empty(0, np.int64)
    steps = log.steps[requests.replica[request]]
    spans = [s[1:] for s in requests.recomputes if s[0] == request]
    return _token_times(
        _StepIndex(steps),
        requests.first_token_row[request],
        requests.last_row[request],
        spans,
        [row for index, row in requests.held_back if index == request],
    )


def decode_gaps(log: RunLog) -> tuple[Int64, Int64]:
    """Gaps between consecutive tokens in ns, and how many tokens had each; two int64 arrays.

    Where every request decodes in every step from its first token to its last, the gap before a
    step's tokens is the same for all of them, and one weighted entry a step will do.
    """
    finished = np.flatnonzero(np.frombuffer(log.requests.status, np.int8) == Status.FINISHED)
    gaps: list[Int64] = []
    weights: list[Int64] = []
    for replica, steps in enumerate(log.steps):
        if not len(steps):
            continue
        index = _StepIndex(steps)
        mine = finished[np.frombuffer(log.requests.replica, np.int16)[finished] == replica]
        if _is_unbroken(log, index, mine):
            step_gaps = np.diff(index.visible_ns, prepend=index.visible_ns[:1])
            seqs = np.repeat(index.decode_seqs, index.steps)[: len(step_gaps)]
            gaps.append(step_gaps)
            weights.append(seqs)
            continue
        for request in mine.tolist():
            request_gaps = np.diff(token_times_ns(log, request))
            gaps.append(request_gaps)
            weights.append(np.ones(len(request_gaps), np.int64))
    if not gaps:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    all_gaps, all_weights = np.concatenate(gaps), np.concatenate(weights)
    counted = all_weights > 0
    return all_gaps[counted], all_weights[counted]


class _StepIndex:
    """Where each run's steps lie in the log of visible times."""

    def __init__(self, steps: StepLog) -> None:
        self.steps = steps.column("steps")
        self.first_step = np.cumsum(self.steps) - self.steps
        self.visible_ns = steps.step_visible_ns()
        self.decode_seqs = steps.column("decode_seqs")


def _is_unbroken(log: RunLog, index: _StepIndex, finished: Int64) -> bool:
    """Whether all decodes in the log are those of the finished requests, one in every step."""
    if log.requests.held_back or log.requests.recomputes:
        return False
    first = np.frombuffer(log.requests.first_token_row, np.int64)[finished]
    last = np.frombuffer(log.requests.last_row, np.int64)[finished]
    past = np.append(index.first_step, index.steps.sum())
    spanned = int((past[last + 1] - past[first + 1]).sum())
    tokens = int((np.maximum(log.table.output_tokens[finished], 1) - 1).sum())
    return spanned == tokens == int((index.steps * index.decode_seqs).sum())


def _token_times(
    index: _StepIndex,
    first_row: int,
    last_row: int,
    recomputes: list[tuple[int, int]],
    held_back: list[int],
) -> Int64:
    rows = np.arange(first_row + 1, last_row + 1)
    keep = index.decode_seqs[rows] > 0
    for start, stop in recomputes:
        keep &= (rows < start) | (rows > stop)
    keep[np.isin(rows, held_back)] = False
    sampled = [first_row, *(stop for start, stop in recomputes if stop > first_row)]
    decode_rows = rows[keep]
    starts = index.first_step[decode_rows]
    counts = index.steps[decode_rows]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    token_steps = np.concatenate([index.first_step[sampled], np.repeat(starts, counts) + offsets])
    times: Int64 = index.visible_ns[np.sort(token_steps)]
    return times
