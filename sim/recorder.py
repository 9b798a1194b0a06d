"""What a run leaves behind of each request, as columns: one row a request of the table."""

from __future__ import annotations

from array import array

from sim.request import Request, Status

UNSET = -1
"""Value of a time or a row that never came."""


def _column(length: int, value: int = UNSET) -> array[int]:
    return array("q", [value]) * length


class RequestLog:
    """One row a request of the table; times in ns, rows count into its replica's step log."""

    def __init__(self, num_requests: int) -> None:
        n = num_requests
        self.status = array("b", [Status.WAITING]) * n
        self.replica = array("h", [UNSET]) * n
        self.arrival_ns = _column(n)
        self.seen_ns = _column(n)
        """First scheduler call that saw it waiting."""
        self.admitted_ns = _column(n)
        """Scheduler call that gave it its first tokens."""
        self.first_token_ns = _column(n)
        self.finished_ns = _column(n)
        self.first_row = _column(n)
        self.first_token_row = _column(n)
        self.last_row = _column(n)
        self.cached_tokens = _column(n, 0)
        self.preemptions = array("i", [0]) * n
        self.recomputes: list[tuple[int, int, int]] = []
        """(request, row that preempted it, row that had recomputed it), closed intervals."""
        self.held_back: list[tuple[int, int]] = []
        """(request, row): a decode step that left a decoding request out."""
        self.swapped: list[tuple[int, int, int]] = []
        """(request, row that swapped it out, row that swapped it in), half-open intervals."""
        self.last_token_row: dict[int, int] = {}
        """Row of the last token where that is not when the request left: it waited for its batch,
        or has other answers. Of the first answer, as all rows here are."""
        self._swapped_at: dict[int, int] = {}
        self._preempted_at: dict[int, int] = {}
        self.reject_reasons: dict[int, str] = {}
        self.fail_reasons: dict[int, str] = {}
        """Why requests failed or were abandoned."""
        self.sent_ns: dict[int, int] = {}
        """When a request was last sent, where it was sent more than once."""
        self.attempts: dict[int, int] = {}
        """How often, first sending included, where more than once."""
        self._void: dict[int, tuple[int, int, int]] = {}
        self.decode: DecodeLog | None = None
        """Of requests that were handed over; None where no engine hands any over."""

    def admitted(self, request: Request, now_ns: int, row: int) -> None:
        """It got its first tokens; only the first admission counts."""
        if request.cancelled:
            return
        index = request.index
        if self.first_row[index] == UNSET:
            self.admitted_ns[index] = now_ns
            self.first_row[index] = row
            self.cached_tokens[index] = request.cached_tokens
        elif self._swapped_at and index in self._swapped_at:
            self.swapped.append((index, self._swapped_at.pop(index), row))

    def preempted(self, request: Request, row: int) -> None:
        """It lost its blocks at the plan of this row."""
        if request.cancelled:
            return
        self.preemptions[request.index] += 1
        if request.status is not Status.WAITING or request.sample:
            return
        if request.swapped_blocks:
            if request.index not in self._preempted_at:  # else its interval is in that one
                self._swapped_at[request.index] = row
        else:
            self._preempted_at.setdefault(request.index, row)

    def prefilled(self, request: Request, row: int) -> None:
        """This row computed the last of its known tokens and samples the next."""
        if request.sample or request.cancelled:
            return
        if self.first_token_row[request.index] == UNSET:
            self.first_token_row[request.index] = row
        if request.num_preemptions:
            start = self._preempted_at.pop(request.index, None)
            if start is not None:
                self.recomputes.append((request.index, start, row))

    def finished(self, request: Request, now_ns: int, row: int) -> None:
        """Its last token became visible."""
        self.status[request.index] = Status.FINISHED
        self.finished_ns[request.index] = now_ns
        self.last_row[request.index] = row

    def rejected(self, request: Request, now_ns: int, reason: str) -> None:
        """It was turned away."""
        self.status[request.index] = Status.REJECTED
        self.finished_ns[request.index] = now_ns
        self.reject_reasons[request.index] = reason

    def failed(self, index: int, now_ns: int, status: Status, reason: str) -> None:
        """It is over without an answer."""
        self.status[index] = status
        self.finished_ns[index] = now_ns
        self.fail_reasons[index] = reason

    def forget(self, index: int) -> None:
        """What was done of it is lost: it will be sent again, or never."""
        self._preempted_at.pop(index, None)
        self._swapped_at.pop(index, None)
        if self.decode is not None:
            self.decode.forget(index)

    def sent_again(self, index: int) -> None:
        """A new attempt: its row is of that one from now on, but for its arrival."""
        self.forget(index)
        self.attempts[index] = self.attempts.get(index, 1) + 1
        self.replica[index] = UNSET
        for column in (self.seen_ns, self.admitted_ns, self.first_token_ns, self.first_row):
            column[index] = UNSET
        self.first_token_row[index] = UNSET
        self.cached_tokens[index] = self.preemptions[index] = 0
        self.last_token_row.pop(index, None)
        self._void[index] = _lengths(self)

    def close(self) -> None:
        """The simulation has ended: what was noted of earlier attempts goes."""
        _drop_void(self, self._void)
        if self.decode is not None:
            self.decode.close()


class DecodeLog:
    """The second residence of requests that are decoded elsewhere than prefilled.

    Rows count into the decoding replica's step log; `RequestLog` has the first residence's, and
    ``last_row`` of the last one. ``-1`` where a request has no second residence.
    """

    def __init__(self, requests: RequestLog) -> None:
        n = len(requests.status)
        self.arrival_ns, self.seen_ns = requests.arrival_ns, requests.seen_ns
        self.first_token_ns = requests.first_token_ns
        self.finished, self.rejected = requests.finished, requests.rejected
        self.last_token_row = requests.last_token_row
        self._preemptions = requests.preemptions
        self.replica = array("h", [UNSET]) * n
        self.reserved_ns = _column(n)
        """Given its blocks."""
        self.received_ns = _column(n)
        """All KV there, and its first token read."""
        self.first_row = _column(n)
        self.recomputes: list[tuple[int, int, int]] = []
        self.held_back: list[tuple[int, int]] = []
        self.swapped: list[tuple[int, int, int]] = []
        self._preempted_at: dict[int, int] = {}
        self._swapped_at: dict[int, int] = {}
        self._void: dict[int, tuple[int, int, int]] = {}

    def forget(self, index: int) -> None:
        """It will be sent again, or never."""
        self._preempted_at.pop(index, None)
        self._swapped_at.pop(index, None)
        self.replica[index] = UNSET
        self.reserved_ns[index] = self.received_ns[index] = self.first_row[index] = UNSET
        self._void[index] = _lengths(self)

    def close(self) -> None:
        """The simulation has ended."""
        _drop_void(self, self._void)

    def admitted(self, request: Request, now_ns: int, row: int) -> None:
        """It decodes from this row on; being admitted again after a preemption does not count."""
        if request.cancelled:
            return
        if self.first_row[request.index] == UNSET:
            self.first_row[request.index] = row
        elif request.index in self._swapped_at:
            self.swapped.append((request.index, self._swapped_at.pop(request.index), row))

    def preempted(self, request: Request, row: int) -> None:
        """It lost its blocks at the plan of this row."""
        if request.cancelled:
            return
        self._preemptions[request.index] += 1
        if request.status is not Status.WAITING:
            return
        if request.swapped_blocks:
            if request.index not in self._preempted_at:
                self._swapped_at[request.index] = row
        else:
            self._preempted_at.setdefault(request.index, row)

    def prefilled(self, request: Request, row: int) -> None:
        """This row has computed again what a preemption took."""
        if request.cancelled:
            return
        start = self._preempted_at.pop(request.index, None)
        if start is not None:
            self.recomputes.append((request.index, start, row))


def _lengths(log: RequestLog | DecodeLog) -> tuple[int, int, int]:
    return len(log.recomputes), len(log.swapped), len(log.held_back)


def _drop_void(log: RequestLog | DecodeLog, void: dict[int, tuple[int, int, int]]) -> None:
    """Leave out the notes on requests from before they were sent again."""
    if not void:
        return
    never = (0, 0, 0)
    log.recomputes = [n for i, n in enumerate(log.recomputes) if i >= void.get(n[0], never)[0]]
    log.swapped = [n for i, n in enumerate(log.swapped) if i >= void.get(n[0], never)[1]]
    log.held_back = [n for i, n in enumerate(log.held_back) if i >= void.get(n[0], never)[2]]
