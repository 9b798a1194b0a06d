"""Every token's time, recovered from the log: it is there when its step's output is visible."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sim.cluster import RunLog
from sim.request import Status
from sim.step_log import StepLog

Int64 = NDArray[np.int64]

_REQUESTS_A_CHUNK = 1024


def token_times_ns(log: RunLog, request: int) -> Int64:
    """When each output token of a finished request became visible, int64 ``[output_tokens]``."""
    requests = log.requests
    if requests.status[request] != Status.FINISHED or not log.table.output_tokens[request]:
        return np.empty(0, np.int64)
    return _TokenTimes(log, requests.replica[request]).of(request)


def gap_chunks(
    log: RunLog, chosen: NDArray[np.bool_] | None = None
) -> Iterator[tuple[Int64, Int64]]:
    """Gaps between consecutive tokens of finished requests, in chunks of (gap_ns, tokens with it).

    ``chosen`` ``[n]``: of these requests only.

    Where every request decodes in every step from its first token to its last, the gap before a
    step's tokens is the same for all of them, and one weighted entry a step will do. Otherwise
    each request's own token times are gone through.
    """
    is_finished = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    finished = np.flatnonzero(is_finished if chosen is None else is_finished & chosen)
    replica = np.frombuffer(log.requests.replica, np.int16)[finished]
    for index, steps in enumerate(log.steps):
        mine = finished[replica == index]
        if _is_unbroken(log, steps, mine):
            yield from _step_gaps(steps)
        elif len(mine):
            times = _TokenTimes(log, index)
            for batch in np.array_split(mine, -(-len(mine) // _REQUESTS_A_CHUNK)):
                gaps_ns = np.concatenate([np.diff(times.of(r)) for r in batch.tolist()])
                yield gaps_ns, np.ones(len(gaps_ns), np.int64)


def decode_gaps(log: RunLog) -> tuple[Int64, Int64]:
    """All of `gap_chunks` at once: two int64 arrays."""
    chunks = [(np.empty(0, np.int64), np.empty(0, np.int64)), *gap_chunks(log)]
    gaps, weights = zip(*chunks, strict=True)
    return np.concatenate(gaps), np.concatenate(weights)


def _step_gaps(steps: StepLog) -> Iterator[tuple[Int64, Int64]]:
    done = 0
    for columns in steps.chunks():
        seqs = np.repeat(columns["decode_seqs"], columns["steps"])
        gaps_ns = steps.gaps_ns(done, done + len(seqs))
        done += len(seqs)
        seqs = seqs[: len(gaps_ns)]
        yield gaps_ns[seqs > 0], seqs[seqs > 0]


def _is_unbroken(log: RunLog, steps: StepLog, finished: Int64) -> bool:
    """Whether all decodes in the log are those of the finished requests, one in every step."""
    requests = log.requests
    if requests.held_back or requests.recomputes or requests.swapped or requests.last_token_row:
        return False
    run_steps = steps.column("steps")
    before = np.concatenate([[0], run_steps.cumsum()])
    first = np.frombuffer(requests.first_token_row, np.int64)[finished]
    last = np.frombuffer(requests.last_row, np.int64)[finished]
    spanned = int((before[last + 1] - before[first + 1]).sum())
    tokens = int((np.maximum(log.table.output_tokens[finished], 1) - 1).sum())
    return spanned == tokens == int((run_steps * steps.column("decode_seqs")).sum())


class _TokenTimes:
    """Token times of one replica's requests: which steps sampled for them, and when those ended."""

    def __init__(self, log: RunLog, replica: int) -> None:
        steps = log.steps[replica]
        self._requests = log.requests
        self._steps = steps.column("steps")
        self._first_step = self._steps.cumsum() - self._steps
        self._decode_seqs = steps.column("decode_seqs")
        self._visible_ns = steps.step_visible_ns()
        self._recomputes: dict[int, list[tuple[int, int]]] = {}
        for request, start, stop in log.requests.recomputes:
            self._recomputes.setdefault(request, []).append((start, stop))
        self._swapped: dict[int, list[tuple[int, int]]] = {}
        for request, start, stop in log.requests.swapped:
            self._swapped.setdefault(request, []).append((start, stop))
        self._held_back: dict[int, list[int]] = {}
        for request, row in log.requests.held_back:
            self._held_back.setdefault(request, []).append(row)

    def of(self, request: int) -> Int64:
        """Token times of a finished request with output, in order."""
        first_row = self._requests.first_token_row[request]
        last_row = self._requests.last_token_row.get(request, self._requests.last_row[request])
        rows = np.arange(first_row + 1, last_row + 1)
        decoded = self._decode_seqs[rows] > 0
        sampled = [first_row]
        for start, stop in self._recomputes.get(request, ()):
            decoded &= (rows < start) | (rows > stop)
            if stop > first_row:
                sampled.append(stop)
        for start, stop in self._swapped.get(request, ()):
            decoded &= (rows < start) | (rows >= stop)
        decoded[np.isin(rows, self._held_back.get(request, []))] = False
        rows = rows[decoded]
        counts = self._steps[rows]
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        steps = np.repeat(self._first_step[rows], counts) + within
        times: Int64 = self._visible_ns[np.sort(np.append(self._first_step[sampled], steps))]
        return times
