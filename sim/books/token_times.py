"""Every token's time, recovered from the log: a token is visible when its step's outputs are."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Float64, Int64
from sim.fleet.cluster import RunLog
from sim.recorder import UNSET, Residence
from sim.request import Status
from sim.step_log import StepLog

_REQUESTS_A_CHUNK = 1024


def token_times_ns(log: RunLog, request: int) -> Int64:
    """Return when each output token of a finished request became visible, int64
    ``[output_tokens]``.

    A request decodes in every step with decodes between its first and its last row, except in steps
    that held it back and while it was recomputed or swapped out; those are recorded as exceptions.
    """
    requests = log.requests
    if requests.status[request] != Status.FINISHED or not log.table.output_tokens[request]:
        return np.empty(0, np.int64)
    return _TokenTimes(log).of(request)


def gap_chunks(
    log: RunLog, chosen: NDArray[np.bool_] | bool = True
) -> Iterator[tuple[Int64, Int64]]:
    """Yield the gaps between consecutive tokens of finished requests, as chunks of (gap_ns, number
    of tokens).

    ``chosen``, bool ``[n]``: only these requests. If every request decodes in every step from its
    first token to its last, the gap before a step's tokens is the same for all of them, and one
    weighted entry per step suffices. Otherwise each request's own token times are used.
    """
    is_finished = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    finished = np.flatnonzero(is_finished & chosen)
    replica = np.frombuffer(log.requests.replica, np.int32)[finished]
    times = _TokenTimes(log)
    for index, steps in enumerate(log.steps):
        mine = finished[replica == index]
        if _is_unbroken(log, steps, mine):
            yield from _step_gaps(steps)
        elif len(mine):
            for batch in np.array_split(mine, -(-len(mine) // _REQUESTS_A_CHUNK)):
                gaps_ns = np.concatenate([np.diff(times.of(r)) for r in batch.tolist()])
                yield gaps_ns, np.ones(len(gaps_ns), np.int64)


def request_gaps_s(log: RunLog, of: str, chosen: NDArray[np.bool_] | bool = True) -> Float64:
    """Return one statistic of each request's own gaps between tokens, in seconds ``[n]``.

    ``of`` is ``max``, ``longest_tenth`` (the mean of the longest tenth of the gaps, one at least)
    or a percentile such as ``p99``: the least gap that this share of them keeps within. NaN for
    requests that did not finish, that have no gap, or that are not ``chosen``, bool ``[n]``.
    """
    found = np.full(len(log.table), np.nan)
    is_finished = np.frombuffer(log.requests.status, np.int8) == Status.FINISHED
    times = _TokenTimes(log)
    for request in np.flatnonzero(is_finished & chosen & (log.table.output_tokens > 1)).tolist():
        gaps_ns = np.diff(times.of(request))
        if not len(gaps_ns):
            continue
        if of == "longest_tenth":
            longest = -(-len(gaps_ns) // 10)
            value_ns = np.partition(gaps_ns, len(gaps_ns) - longest)[-longest:].mean()
        else:
            share = 1.0 if of == "max" else int(of.removeprefix("p")) / 100
            rank = max(math.ceil(share * len(gaps_ns) - 1e-9), 1)
            value_ns = np.partition(gaps_ns, rank - 1)[rank - 1]
        found[request] = value_ns / 1e9
    return found


def _step_gaps(steps: StepLog) -> Iterator[tuple[Int64, Int64]]:
    done = 0
    for columns in steps.chunks():
        if steps.speculates:  # tokens that came together with an earlier one
            yield np.zeros(1, np.int64), columns["accepted_tokens"].sum(keepdims=True)
        seqs = np.repeat(columns["decode_seqs"], columns["steps"])
        gaps_ns = steps.gaps_ns(done, done + len(seqs))
        done += len(seqs)
        seqs = seqs[: len(gaps_ns)]
        yield gaps_ns[seqs > 0], seqs[seqs > 0]


def _is_unbroken(log: RunLog, steps: StepLog, finished: Int64) -> bool:
    """Whether all decodes in the log belong to the finished requests, one in every step."""
    requests = log.requests
    if any((requests.held_back, requests.recomputes, requests.swapped, requests.last_token_row)):
        return False
    if requests.decode is not None:
        return False
    run_steps = steps.column("steps")
    before = np.concatenate([[0], run_steps.cumsum()])
    first = np.frombuffer(requests.first_token_row, np.int64)[finished]
    last = np.frombuffer(requests.last_row, np.int64)[finished]
    spanned = int((before[last + 1] - before[first + 1]).sum())
    tokens = int((np.maximum(log.table.output_tokens[finished], 1) - 1).sum())
    rounds = int((run_steps * steps.column("decode_seqs")).sum())
    accepted = int(steps.column("accepted_tokens").sum()) if steps.speculates else 0
    return spanned == rounds and tokens == rounds + accepted


class _TokenTimes:
    """Token times: which steps sampled for a request, and when those became visible."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._rounds = log.requests.rounds
        self._replicas: dict[int, _Steps] = {}
        self._first = _Notes(log.requests)
        decode = log.requests.decode
        self._second = None if decode is None else (decode, _Notes(decode))

    def of(self, request: int) -> Int64:
        """Return the token times of a finished request with output, in order."""
        requests = self._log.requests
        rounds = self._rounds.get(request, b"")
        first_row, last_row = requests.first_token_row[request], requests.last_row[request]
        here = self._steps(requests.replica[request])
        if self._second is None or self._second[0].first_row[request] == UNSET:
            return here.times(request, first_row + 1, last_row, [first_row], self._first, rounds)
        decode, notes = self._second
        there = self._steps(decode.replica[request])
        start = decode.first_row[request]
        later = there.times(request, start, last_row, [], notes, rounds)
        alone = here.times(request, 0, -1, [first_row], self._first)  # no decodes: rows 0 to -1
        return np.append(alone, later)

    def _steps(self, replica: int) -> _Steps:
        if replica not in self._replicas:
            self._replicas[replica] = _Steps(self._log.steps[replica])
        return self._replicas[replica]


class _Notes:
    """Log rows that left a request out, by request."""

    def __init__(self, log: Residence) -> None:
        self.last_token_row = log.last_token_row
        self.recomputes = _by_request(log.recomputes)
        self.swapped = _by_request(log.swapped)
        self.held_back: dict[int, list[int]] = {}
        for request, row in log.held_back:
            self.held_back.setdefault(request, []).append(row)


def _by_request(intervals: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for request, start, stop in intervals:
        found.setdefault(request, []).append((start, stop))
    return found


class _Steps:
    """The steps of one replica."""

    def __init__(self, steps: StepLog) -> None:
        self._steps = steps.column("steps")
        self._first_step = self._steps.cumsum() - self._steps
        self._decode_seqs = steps.column("decode_seqs")
        self._visible_ns = steps.step_visible_ns()

    def times(
        self,
        request: int,
        start: int,
        last: int,
        prefill_rows: list[int],
        notes: _Notes,
        rounds: bytes = b"",
    ) -> Int64:
        """Return when the tokens of one residence became visible, int64, in order.

        Decode steps lie in rows ``start`` to ``last``; each row of ``prefill_rows`` computed the
        end of a prompt (or of a recomputation) and gave one token. ``rounds``: tokens per decode
        step; empty: one. Intervals of `recomputes` include their last row, those of `swapped` do
        not.
        """
        rows = np.arange(start, notes.last_token_row.get(request, last) + 1)
        decoded = self._decode_seqs[rows] > 0
        prefill_rows = list(prefill_rows)
        for begin, end in notes.recomputes.get(request, ()):
            decoded &= (rows < begin) | (rows > end)
            if start <= end <= last:
                prefill_rows.append(end)
        for begin, end in notes.swapped.get(request, ()):
            decoded &= (rows < begin) | (rows >= end)
        decoded[np.isin(rows, notes.held_back.get(request, []))] = False
        rows = rows[decoded]
        counts = self._steps[rows]
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        steps = np.repeat(self._first_step[rows], counts) + within
        chosen = np.append(self._first_step[prefill_rows], steps).astype(np.int64)
        if rounds:
            given = np.append(np.ones(len(prefill_rows), np.uint8), np.frombuffer(rounds, np.uint8))
            chosen = np.repeat(chosen, given)
        times: Int64 = self._visible_ns[np.sort(chosen)]
        return times
