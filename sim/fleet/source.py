"""Where requests come from: the table's rows at their times, or when earlier requests have left."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

import numpy as np
import simpy

from sim.arrays import Int64
from sim.request import Request
from sim.request_table import RequestTable

_PROGRESS_EVERY = 256
_ROWS_A_BATCH = 8192
_TURNAROUND_NS = 1  # a client that waited for an answer sends after that instant, not in it

# arrival_ns, prompt_tokens, output_tokens, priority, tenant
_Row = tuple[int, int, int, int, int]


class Source:
    """Sends the table's requests at their times, at most ``max_concurrency`` at once.

    A later turn of a session is an event in the environment's queue from when the turn before it
    leaves; events of one instant are handled in the order in which they were made.
    """

    def __init__(
        self,
        env: simpy.Environment,
        table: RequestTable,
        send: Callable[[Request], None],
        progress: Callable[[int], None] | None,
    ) -> None:
        self._env = env
        self._table = table
        self._send = send
        self._progress = progress
        self._in_flight = 0
        self._slot_free = env.event()
        self._next_turns = _next_turns(table)
        self._columns = _columns(table)

    def run(self) -> Generator[simpy.Event, None, None]:
        """The SimPy process: one event per arrival instant."""
        table, env = self._table, self._env
        limit = table.max_concurrency
        for index, (arrival_ns, *row) in _rows(table, self._columns):
            now_ns = int(env.now)
            if arrival_ns > now_ns:
                yield env.timeout(arrival_ns - now_ns)
            if limit is not None:
                while self._in_flight >= limit:
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
        request = Request(index, now_ns, prompt_tokens, max(1, output_tokens), priority, tenant)
        if self._table.samples is not None:
            further = self._table.samples.further(index)
            if further:
                request.ask_answers(further)
        if self._table.beams is not None:
            beams = self._table.beams.of(index, request.output_tokens)
            if beams is not None:
                request.ask_beams(beams)
        self._send(request)
        if self._progress is not None and index % _PROGRESS_EVERY == 0:
            self._progress(index)


def _columns(table: RequestTable) -> tuple[Int64, ...]:
    """Return the columns of a row. The tenant is the class of the table; without classes there
    is one."""
    tenant = np.zeros(len(table), np.int64) if table.class_index is None else table.class_index
    lengths = (table.prompt_tokens, table.output_tokens)
    return (table.arrival_ns, *lengths, table.priority, tenant)


def _rows(table: RequestTable, columns: tuple[Int64, ...]) -> Iterator[tuple[int, _Row]]:
    """Yield the table row by row as plain integers, converted in batches; later turns are left
    out."""
    for start in range(0, len(table), _ROWS_A_BATCH):
        batch = (column[start : start + _ROWS_A_BATCH].tolist() for column in columns)
        rows = enumerate(zip(*batch, strict=True), start)
        yield from rows if table.after is None else (r for r in rows if table.after[r[0]] < 0)


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
