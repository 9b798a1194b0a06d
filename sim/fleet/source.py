"""Where requests come from: the table's rows at their times, or when earlier requests have left."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

import numpy as np
import simpy

from sim.arrays import Int64
from sim.beams import BeamSearch
from sim.request import Request
from sim.request_table import RequestTable, SampleLengths

_PROGRESS_EVERY = 256
_ROWS_A_BATCH = 8192
_TURNAROUND_NS = 1  # a client that waited for an answer sends after that instant, not in it

# arrival_ns, prompt_tokens, output_tokens, priority, tenant
_Row = tuple[int, int, int, int, int]


class RequestMaker:
    """Makes the requests of a table's rows, with the answers or beams that they ask for."""

    def __init__(self, table: RequestTable) -> None:
        self.num_requests = len(table)
        self._extras: list[Callable[[Request], None]] = []
        if table.samples is not None:
            self._extras.append(partial(_ask_for_answers, table.samples))
        if table.beams is not None:
            self._extras.append(partial(_ask_for_beams, table.beams))

    def new(
        self,
        index: int,
        now_ns: int,
        prompt_tokens: int,
        output_tokens: int,
        priority: int,
        tenant: int,
    ) -> Request:
        """Return the request of a row, to be sent now."""
        request = Request(index, now_ns, prompt_tokens, max(1, output_tokens), priority, tenant)
        for ask in self._extras:
            ask(request)
        return request

    def again(self, request: Request, now_ns: int) -> Request:
        """Return a request as it was when it was first sent, to be sent now."""
        lengths = request.prompt_tokens, request.output_tokens
        return self.new(request.index, now_ns, *lengths, request.priority, request.tenant)


def _ask_for_answers(samples: SampleLengths, request: Request) -> None:
    further = samples.further(request.index)
    if further:
        request.ask_answers(further)


def _ask_for_beams(beams: BeamSearch, request: Request) -> None:
    asked = beams.of(request.index, request.output_tokens)
    if asked is not None:
        request.ask_beams(asked)


class Source:
    """Sends the table's requests at their times, at most ``max_concurrency`` at once.

    A later turn of a session is an event in the environment's queue from when the turn before it
    leaves; events of one instant are handled in the order in which they were made.
    """

    send: Callable[[Request], None]
    """Takes the requests; set before the run."""

    def __init__(
        self,
        env: simpy.Environment,
        table: RequestTable,
        requests: RequestMaker,
        progress: Callable[[int], None],
    ) -> None:
        self._env = env
        self._table = table
        self._requests = requests
        self._progress = progress
        self._in_flight = 0
        self._slot_free = env.event()
        self._next_turns = _next_turns(table)
        self._columns = _columns(table)

    def run(self) -> Generator[simpy.Event, None, None]:
        """The SimPy process: one event per arrival instant."""
        table, env = self._table, self._env
        for index, (arrival_ns, *row) in _rows(table, self._columns):
            now_ns = int(env.now)
            if arrival_ns > now_ns:
                yield env.timeout(arrival_ns - now_ns)
            while self._in_flight >= table.max_concurrency:
                self._slot_free = env.event()
                yield self._slot_free
                yield env.timeout(_TURNAROUND_NS)
            self._submit(index, *row)

    def left(self, request: Request) -> None:
        """Handle a request that finished or was rejected: a slot is free, and its next turns can
        be sent."""
        self._in_flight -= 1
        if not self._slot_free.triggered:
            self._slot_free.succeed()
        if self._next_turns:
            for index, earliest_ns, think_ns in self._next_turns.pop(request.index, ()):
                now_ns = int(self._env.now)
                wait_ns = max(think_ns, earliest_ns - now_ns, _TURNAROUND_NS)
                turn = self._env.timeout(wait_ns)
                turn.callbacks.append(partial(self._send_turn, index))

    def _send_turn(self, index: int, _: simpy.Event) -> None:
        self._submit(index, *(int(column[index]) for column in self._columns[1:]))

    def _submit(
        self, index: int, prompt_tokens: int, output_tokens: int, priority: int, tenant: int
    ) -> None:
        self._in_flight += 1
        now_ns = int(self._env.now)
        self.send(self._requests.new(index, now_ns, prompt_tokens, output_tokens, priority, tenant))
        if index % _PROGRESS_EVERY == 0:
            self._progress(index)


def _columns(table: RequestTable) -> tuple[Int64, ...]:
    lengths = (table.prompt_tokens, table.output_tokens)
    return (table.arrival_ns, *lengths, table.priority, table.tenant)


def _rows(table: RequestTable, columns: tuple[Int64, ...]) -> Iterator[tuple[int, _Row]]:
    """Yield the table row by row as plain integers, converted in batches; later turns are left
    out."""
    first_turns = np.flatnonzero(~table.is_later_turn)
    for start in range(0, len(first_turns), _ROWS_A_BATCH):
        rows = first_turns[start : start + _ROWS_A_BATCH]
        batch = (column[rows].tolist() for column in columns)
        yield from zip(rows.tolist(), zip(*batch, strict=True), strict=True)


def _next_turns(table: RequestTable) -> dict[int, list[tuple[int, int, int]]]:
    """Return the rows sent after each row: (row, its earliest time, its think time)."""
    turns: dict[int, list[tuple[int, int, int]]] = {}
    if table.after is not None and table.think_ns is not None:
        columns = (table.after, table.arrival_ns, table.think_ns)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (after, earliest_ns, think_ns) in enumerate(rows):
            if after >= 0:
                turns.setdefault(after, []).append((index, earliest_ns, think_ns))
    return turns
