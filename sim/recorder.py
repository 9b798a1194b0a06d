"""What a run leaves behind of each request, as columns: one row a request of the table."""

from __future__ import annotations

from array import array

from sim.request import Request, Status

UNSET = -1
"""Value of a time or a row that never came."""


def _column(length: int, value: int = UNSET) -> array[int]:
    return array("q", [value]) * length


class Residence:
    """Requests' stay in engines: in which, from which row on, and which rows left them out.

    Rows count into the replica's step log. Where a request has several answers, they are those of
    its first.
    """

    def __init__(self, num_requests: int, preemptions: array[int] | None = None) -> None:
        n = num_requests
        self.replica = array("h", [UNSET]) * n
        self.first_row = _column(n)
        self.preemptions = array("i", [0]) * n if preemptions is None else preemptions
        self.recomputes: list[tuple[int, int, int]] = []
        """(request, row that preempted it, row that had recomputed it), closed intervals."""
        self.held_back: list[tuple[int, int]] = []
        """(request, row): a decode step that left a decoding request out."""
        self.swapped: list[tuple[int, int, int]] = []
        """(request, row that swapped it out, row that swapped it in), half-open intervals."""
        self.last_token_row: dict[int, int] = {}
        """Row of the last token where that is not when the request left: it waited for its batch,
        or has other answers."""
        self._swapped_at: dict[int, int] = {}
        self._preempted_at: dict[int, int] = {}

    def admitted(self, request: Request, now_ns: int, row: int) -> bool:
        """It takes part from this row on; whether for the first time here."""
        index = request.index
        if self.first_row[index] == UNSET:
            self.first_row[index] = row
            return True
        if self._swapped_at and index in self._swapped_at:
            self.swapped.append((index, self._swapped_at.pop(index), row))
        return False

    def preempted(self, request: Request, row: int) -> None:
        """It lost its blocks at the plan of this row."""
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
        if request.num_preemptions and not request.sample:
            start = self._preempted_at.pop(request.index, None)
            if start is not None:
                self.recomputes.append((request.index, start, row))


class RequestLog(Residence):
    """One row a request of the table; times in ns. The residence is the first, often the only."""

    def __init__(self, num_requests: int) -> None:
        super().__init__(num_requests)
        n = num_requests
        self.status = array("b", [Status.WAITING]) * n
        self.arrival_ns = _column(n)
        self.seen_ns = _column(n)
        """First scheduler call that saw it waiting."""
        self.admitted_ns = _column(n)
        """Scheduler call that gave it its first tokens."""
        self.first_token_ns = _column(n)
        self.finished_ns = _column(n)
        self.first_token_row = _column(n)
        self.last_row = _column(n)
        """In the replica it finished in."""
        self.cached_tokens = _column(n, 0)
        self.reject_reasons: dict[int, str] = {}
        self.decode: DecodeLog | None = None
        """Of requests that were handed over; None where no engine hands any over."""

    def admitted(self, request: Request, now_ns: int, row: int) -> bool:
        """It got its first tokens; only the first admission counts."""
        is_first = super().admitted(request, now_ns, row)
        if is_first:
            self.admitted_ns[request.index] = now_ns
            self.cached_tokens[request.index] = request.cached_tokens
        return is_first

    def prefilled(self, request: Request, row: int) -> None:
        """This row computed the last of its known tokens and samples the next."""
        if not request.sample and self.first_token_row[request.index] == UNSET:
            self.first_token_row[request.index] = row
        super().prefilled(request, row)

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


class DecodeLog(Residence):
    """The second residence of requests that are decoded elsewhere than prefilled."""

    def __init__(self, requests: RequestLog) -> None:
        n = len(requests.status)
        super().__init__(n, requests.preemptions)
        self.arrival_ns, self.seen_ns = requests.arrival_ns, requests.seen_ns
        self.first_token_ns = requests.first_token_ns
        self.finished, self.rejected = requests.finished, requests.rejected
        self.reserved_ns = _column(n)
        """Given its blocks."""
        self.received_ns = _column(n)
        """All KV there, and its first token read."""
