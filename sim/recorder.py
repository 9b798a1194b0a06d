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
        self.replica = array("i", [UNSET]) * n
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
        self._void: dict[int, tuple[int, int, int]] = {}

    def forget(self, index: int) -> None:
        """What was done of a request is lost; it is sent again, or never."""
        self._preempted_at.pop(index, None)
        self._swapped_at.pop(index, None)
        self.last_token_row.pop(index, None)
        self.replica[index] = self.first_row[index] = UNSET
        self.preemptions[index] = 0
        self._void[index] = (len(self.recomputes), len(self.swapped), len(self.held_back))

    def drop_forgotten(self) -> None:
        """Once, at the end: leave out what was noted of requests before they were forgotten."""
        void, never = self._void, (0, 0, 0)
        if not void:
            return
        last = list(enumerate(self.recomputes)), list(enumerate(self.swapped))
        self.recomputes = [note for i, note in last[0] if i >= void.get(note[0], never)[0]]
        self.swapped = [note for i, note in last[1] if i >= void.get(note[0], never)[1]]
        held_back = enumerate(self.held_back)
        self.held_back = [note for i, note in held_back if i >= void.get(note[0], never)[2]]

    def admitted(self, request: Request, now_ns: int, row: int) -> bool:
        """It takes part from this row on; whether for the first time here."""
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
        """Its KV comes from a lower tier in so long; only before its first admission."""

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
        if request.num_preemptions and not request.sample and not request.cancelled:
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
        self.fail_reasons: dict[int, str] = {}
        """Why requests failed or were abandoned."""
        self.sent_ns: dict[int, int] = {}
        """When a request was last sent, where it was sent more than once."""
        self.attempts: dict[int, int] = {}
        """How often, the first time included, where more than once."""
        self.load_ns: dict[int, int] = {}
        """How long a request waited for its KV from lower tiers before it was admitted."""
        self.tier_tokens: dict[int, dict[int, int]] = {}
        """Its hits by tier, where some came from below device memory (0)."""
        self.fetched: dict[int, tuple[int, int]] = {}
        """(ns, tokens) of prefixes that were fetched from another engine before a request could
        join the queue of its own."""
        self.rounds: dict[int, bytes] = {}
        """Tokens that each decode step gave a finished request, where engines speculate."""
        self.decode: DecodeLog | None = None
        """Of requests that were handed over; None where no engine hands any over."""

    def admitted(self, request: Request, now_ns: int, row: int) -> bool:
        """It got its first tokens; only the first admission counts."""
        is_first = super().admitted(request, now_ns, row)
        if is_first:
            self.admitted_ns[request.index] = now_ns
            self.cached_tokens[request.index] = request.cached_tokens
            if request.loaded:
                self.tier_tokens[request.index] = _by_tier(request)
        return is_first

    def loading(self, request: Request, load_ns: int) -> None:
        """Its KV comes from a lower tier in so long; only before its first admission."""
        if self.first_row[request.index] == UNSET and not request.cancelled:
            self.load_ns[request.index] = load_ns

    def prefilled(self, request: Request, row: int) -> None:
        """This row computed the last of its known tokens and samples the next."""
        index = request.index
        if self.first_token_row[index] == UNSET and not request.sample and not request.cancelled:
            self.first_token_row[index] = row
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

    def failed(self, index: int, now_ns: int, status: Status, reason: str) -> None:
        """It is over without an answer."""
        self.status[index] = status
        self.finished_ns[index] = now_ns
        self.fail_reasons[index] = reason

    def sent_again(self, index: int, now_ns: int) -> None:
        """A new attempt: its row is of that one from now on, but for its arrival."""
        self.forget(index)
        self.sent_ns[index] = now_ns
        self.attempts[index] = self.attempts.get(index, 1) + 1
        columns = (self.seen_ns, self.admitted_ns, self.first_token_ns, self.first_token_row)
        for column in columns:
            column[index] = UNSET
        self.cached_tokens[index] = 0
        self.load_ns.pop(index, None)
        self.tier_tokens.pop(index, None)
        self.fetched.pop(index, None)
        self.rounds.pop(index, None)
        if self.decode is not None:
            self.decode.forget(index)


def _by_tier(request: Request) -> dict[int, int]:
    """Where its hit comes from; what was loaded and lost again before it was admitted is no hit."""
    found: dict[int, int] = {}
    left = request.cached_tokens
    for tier, tokens in request.loaded:
        found[tier] = found.get(tier, 0) + min(tokens, left)
        left -= min(tokens, left)
    found[0] += left
    return found


class DecodeLog(Residence):
    """The second residence of requests that are decoded elsewhere than prefilled."""

    def __init__(self, requests: RequestLog) -> None:
        n = len(requests.status)
        super().__init__(n, requests.preemptions)
        self.arrival_ns, self.seen_ns = requests.arrival_ns, requests.seen_ns
        self.first_token_ns = requests.first_token_ns
        self.finished, self.rejected = requests.finished, requests.rejected
        self.rounds = requests.rounds
        self.reserved_ns = _column(n)
        """Given its blocks."""
        self.received_ns = _column(n)
        """All KV there, and its first token read."""

    def forget(self, index: int) -> None:
        """What was done of a request is lost."""
        super().forget(index)
        self.reserved_ns[index] = self.received_ns[index] = UNSET
