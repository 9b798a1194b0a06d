"""The columns that a run records for its requests: one row per request of the table."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from sim.request import Request, Status

UNSET = -1
"""Value of a time or row that never came."""


def _column(length: int, value: int = UNSET) -> array[int]:
    return array("q", [value]) * length


class Residence:
    """The stay of requests in engines: in which engine, from which step-log row on, which rows left
    them out.

    Rows index the replica's step log. For a request with several answers they belong to the first
    answer.
    """

    def __init__(self, num_requests: int) -> None:
        n = num_requests
        self.replica = array("i", [UNSET]) * n
        self.first_row = _column(n)
        self.preemptions = array("i", [0]) * n
        self.recomputes: list[tuple[int, int, int]] = []
        """(request, row that preempted it, row that had recomputed it), closed intervals."""
        self.held_back: list[tuple[int, int]] = []
        """(request, row of a decode step that left the decoding request out)."""
        self.swapped: list[tuple[int, int, int]] = []
        """(request, row that swapped it out, row that swapped it in), half-open intervals."""
        self.last_token_row: dict[int, int] = {}
        """Row of the last token, if that differs from the row in which the request left: it waited
        for its batch, or has other answers."""
        self._swapped_at: dict[int, int] = {}
        self._preempted_at: dict[int, int] = {}
        self._void: dict[int, tuple[int, int, int]] = {}

    def forget(self, index: int) -> None:
        """Discard what was recorded of a request: the work is lost, and it may be sent again."""
        self._preempted_at.pop(index, None)
        self._swapped_at.pop(index, None)
        self.last_token_row.pop(index, None)
        self.replica[index] = self.first_row[index] = UNSET
        self.preemptions[index] = 0
        self._void[index] = (len(self.recomputes), len(self.swapped), len(self.held_back))

    def drop_forgotten(self) -> None:
        """Leave out what was recorded of requests before `forget`; called once, at the end."""
        void, never = self._void, (0, 0, 0)
        if not void:
            return
        last = list(enumerate(self.recomputes)), list(enumerate(self.swapped))
        self.recomputes = [note for i, note in last[0] if i >= void.get(note[0], never)[0]]
        self.swapped = [note for i, note in last[1] if i >= void.get(note[0], never)[1]]
        held_back = enumerate(self.held_back)
        self.held_back = [note for i, note in held_back if i >= void.get(note[0], never)[2]]

    def admitted(self, request: Request, now_ns: int, row: int) -> bool:
        """The request takes part in steps from this row on. Returns whether it is the first time
        here."""
        if request.cancelled:
            return False
        index = request.index
        if self.first_row[index] == UNSET:
            self.first_row[index] = row
            return True
        if self._swapped_at and index in self._swapped_at:
            self.swapped.append((index, self._swapped_at.pop(index), row))
        return False

    def loading(self, request: Request, load_ns: int) -> None:
        """The request waits ``load_ns`` for KV from a lower tier, before its first admission
        only."""

    def preempted(self, request: Request, row: int) -> None:
        """The request lost its blocks at the plan of this row."""
        if request.cancelled:
            return
        self.preemptions[request.index] += 1
        if request.status is not Status.WAITING or request.sample:
            return
        if request.swapped_blocks:
            if request.index not in self._preempted_at:  # otherwise its interval lies in that one
                self._swapped_at[request.index] = row
        else:
            self._preempted_at.setdefault(request.index, row)

    def prefilled(self, request: Request, row: int) -> None:
        """This row computes the last known token of the request and samples the next."""
        index = request.index
        if index in self._preempted_at and not request.sample and not request.cancelled:
            self.recomputes.append((index, self._preempted_at.pop(index), row))


class RequestLog(Residence):
    """One row per request of the table; times in nanoseconds. Its own residence is the first
    engine's."""

    def __init__(self, num_requests: int) -> None:
        super().__init__(num_requests)
        n = num_requests
        self.status = array("b", [Status.WAITING]) * n
        self.arrival_ns = _column(n)
        self.seen_ns = _column(n)
        """First scheduler call that saw the request waiting."""
        self.admitted_ns = _column(n)
        """Scheduler call that gave the request its first tokens."""
        self.first_token_ns = _column(n)
        self.finished_ns = _column(n)
        self.first_token_row = _column(n)
        self.last_row = _column(n)
        """Step-log row, in the replica where the request finished."""
        self.cached_tokens = _column(n, 0)
        self.reject_reasons: dict[int, str] = {}
        self.fail_reasons: dict[int, str] = {}
        """Why requests failed or were abandoned, by request."""
        self.sent_ns: dict[int, int] = {}
        """Time of the last attempt, for requests sent more than once."""
        self.attempts: dict[int, int] = {}
        """Number of attempts, the first included, for requests sent more than once."""
        self.api_arrival_ns: dict[int, int] = {}
        """Time a request was with the API server before the engine got it."""
        self.api_first_ns: dict[int, int] = {}
        """Time its first token was with the API server."""
        self.api_answer_ns: dict[int, int] = {}
        """Time its last token was with the API server."""
        self.load_ns: dict[int, int] = {}
        """Time a request waited for KV from lower tiers before it was admitted."""
        self.tier_tokens: dict[int, dict[int, int]] = {}
        """Hit tokens by tier, for requests with hits below device memory (tier 0)."""
        self.fetched: dict[int, tuple[int, int]] = {}
        """(ns, tokens) of prefixes fetched from another engine before the request joined its own
        queue."""
        self.rounds: dict[int, bytes] = {}
        """Tokens per decode step of each finished request, in engines that speculate."""
        self.decode: DecodeLog | None = None
        """Second residences, of requests that were handed over; None if no engine hands any over.
        """

    def decodes(self) -> DecodeLog:
        """Return the log of second residences, made at the first call."""
        if self.decode is None:
            self.decode = DecodeLog(self)
        return self.decode

    @property
    def handed_over(self) -> NDArray[np.bool_]:
        """Return which requests were decoded by another engine than prefilled them, ``[n]``."""
        if self.decode is None:
            return np.zeros(len(self.status), np.bool_)
        handed_over: NDArray[np.bool_] = np.frombuffer(self.decode.first_row, np.int64) != UNSET
        return handed_over

    def close(self) -> None:
        """End the records: those of lost attempts are left out, and requests that have not left
        are unfinished."""
        self.drop_forgotten()
        if self.decode is not None:
            self.decode.drop_forgotten()
        status = np.frombuffer(self.status, np.int8)
        status[status < Status.FINISHED] = Status.UNFINISHED

    def admitted(self, request: Request, now_ns: int, row: int) -> bool:
        """The request got its first tokens; only its first admission is recorded."""
        is_first = super().admitted(request, now_ns, row)
        if is_first:
            self.admitted_ns[request.index] = now_ns
            self.cached_tokens[request.index] = request.cached_tokens
            if request.loaded:
                self.tier_tokens[request.index] = _by_tier(request)
        return is_first

    def loading(self, request: Request, load_ns: int) -> None:
        """The request waits ``load_ns`` for KV from a lower tier, before its first admission
        only."""
        if self.first_row[request.index] == UNSET and not request.cancelled:
            self.load_ns[request.index] = load_ns

    def prefilled(self, request: Request, row: int) -> None:
        """This row computes the last known token of the request and samples the next."""
        index = request.index
        if self.first_token_row[index] == UNSET and not request.sample and not request.cancelled:
            self.first_token_row[index] = row
        super().prefilled(request, row)

    def finished(self, request: Request, now_ns: int, row: int) -> None:
        """The request's last token became visible."""
        self.status[request.index] = Status.FINISHED
        self.finished_ns[request.index] = now_ns
        self.last_row[request.index] = row

    def rejected(self, request: Request, now_ns: int, reason: str) -> None:
        """The request was turned away."""
        self.status[request.index] = Status.REJECTED
        self.finished_ns[request.index] = now_ns
        self.reject_reasons[request.index] = reason

    def failed(self, index: int, now_ns: int, status: Status, reason: str) -> None:
        """The request ended without an answer."""
        self.status[index] = status
        self.finished_ns[index] = now_ns
        self.fail_reasons[index] = reason

    def sent_again(self, index: int, now_ns: int) -> None:
        """A new attempt was sent; the row describes it from now on, except for its arrival."""
        self.forget(index)
        self.sent_ns[index] = now_ns
        self.attempts[index] = self.attempts.get(index, 1) + 1
        columns = (self.seen_ns, self.admitted_ns, self.first_token_ns, self.first_token_row)
        for column in columns:
            column[index] = UNSET
        self.cached_tokens[index] = 0
        for of_some in (self.api_arrival_ns, self.api_first_ns, self.api_answer_ns):
            of_some.pop(index, None)
        self.load_ns.pop(index, None)
        self.tier_tokens.pop(index, None)
        self.fetched.pop(index, None)
        self.rounds.pop(index, None)
        if self.decode is not None:
            self.decode.forget(index)


def _by_tier(request: Request) -> dict[int, int]:
    """Return the hit by tier. Content loaded and evicted again before admission is no hit."""
    found: dict[int, int] = {}
    left = request.cached_tokens
    for tier, tokens in request.loaded:
        found[tier] = found.get(tier, 0) + min(tokens, left)
        left -= min(tokens, left)
    found[0] += left
    return found


class DecodeLog(Residence):
    """The second residence of requests that are decoded by another engine than prefilled them."""

    def __init__(self, requests: RequestLog) -> None:
        n = len(requests.status)
        super().__init__(n)
        self.preemptions = requests.preemptions
        self.arrival_ns, self.seen_ns = requests.arrival_ns, requests.seen_ns
        self.first_token_ns = requests.first_token_ns
        self.finished, self.rejected = requests.finished, requests.rejected
        self.rounds = requests.rounds
        self.api_arrival_ns, self.api_first_ns = requests.api_arrival_ns, requests.api_first_ns
        self.api_answer_ns = requests.api_answer_ns
        self.reserved_ns = _column(n)
        """When the request was given its blocks."""
        self.received_ns = _column(n)
        """When all KV had arrived and the first token was read."""

    def forget(self, index: int) -> None:
        """Discard what was recorded of a request."""
        super().forget(index)
        self.reserved_ns[index] = self.received_ns[index] = UNSET
