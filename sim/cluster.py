"""A pool of engines behind a router, fed from a request table: one simulation, start to end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from sim.engine import Engine
from sim.engine_view import EngineConfig
from sim.errors import PolicyError
from sim.kv_cache import KVCache
from sim.protocols import ReplicaLoad, Router, Scheduler, StepCost
from sim.recorder import RequestLog
from sim.request import Request, Status
from sim.request_table import RequestTable
from sim.step_log import StepLog
from sim.together import Samples
from sim.waiting import SortedQueue

Int64 = NDArray[np.int64]

_PROGRESS_EVERY = 256
_ROWS_A_BATCH = 8192
_TURNAROUND_NS = 1  # a client that waited for an answer sends after that instant, not in it

# arrival_ns, prompt_tokens, output_tokens, priority, tenant
_Row = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Equal engines behind one router."""

    engine: EngineConfig
    cost: StepCost
    make_scheduler: Callable[[], Scheduler]
    """A fresh scheduler for each engine."""
    make_router: Callable[[int], Router]
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """All that a simulation leaves behind; metrics and ledgers are functions of it."""

    table: RequestTable
    requests: RequestLog
    steps: list[StepLog]
    """One a replica."""
    pool: PoolConfig
    end_ns: int
    """When the simulation stopped: the last event, or the horizon."""
    num_events: int
    """SimPy events processed."""


class _CountingEnvironment(simpy.Environment):
    """Counts the events it processes: a measure of work that no noisy machine disturbs."""

    num_events = 0
    last_ns = 0
    """Time of the last event that anyone waited for: the alarm of a jump that was cut is none."""

    def step(self) -> None:
        self.num_events += 1
        if self._queue and self._queue[0][3].callbacks:
            self.last_ns = self._queue[0][0]  # type: ignore[assignment]  # an int: see Engine
        super().step()


class _Source:
    """Sends the table's requests at their times, at most ``max_concurrency`` at once.

    A later turn of a session is an event in the environment's queue from when the turn before it
    leaves; events of one instant are handled in the order they were made.
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
        """The process: one event an arrival instant."""
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
        """A request finished or was rejected: a slot is free, and its next turns can be sent."""
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
                request.samples = Samples(further, 1 + len(further))
        self._send(request)
        if self._progress is not None and index % _PROGRESS_EVERY == 0:
            self._progress(index)


def _columns(table: RequestTable) -> tuple[Int64, ...]:
    """The columns of a row. A tenant is a class of the table; without classes there is one."""
    tenant = np.zeros(len(table), np.int64) if table.class_index is None else table.class_index
    lengths = (table.prompt_tokens, table.output_tokens)
    return (table.arrival_ns, *lengths, table.priority, tenant)


def _rows(table: RequestTable, columns: tuple[Int64, ...]) -> Iterator[tuple[int, _Row]]:
    """The table row by row as plain integers, a batch of rows at a time; no later turns."""
    for start in range(0, len(table), _ROWS_A_BATCH):
        batch = (column[start : start + _ROWS_A_BATCH].tolist() for column in columns)
        rows = enumerate(zip(*batch, strict=True), start)
        yield from rows if table.after is None else (r for r in rows if table.after[r[0]] < 0)


def _next_turns(table: RequestTable) -> dict[int, list[tuple[int, int, int]]]:
    """The rows sent after each row: (row, its earliest time, its think time)."""
    turns: dict[int, list[tuple[int, int, int]]] = {}
    if table.after is not None and table.think_ns is not None:
        columns = (table.after, table.arrival_ns, table.think_ns)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for index, (after, earliest_ns, think_ns) in enumerate(rows):
            if after >= 0:
                turns.setdefault(after, []).append((index, earliest_ns, think_ns))
    return turns


def run_cluster(
    table: RequestTable,
    pool: PoolConfig,
    *,
    until_ns: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RunLog:
    """Simulate the table on the pool until everything has left, or until the horizon.

    ``progress`` is called now and then with the number of requests sent. Raises PolicyError
    where a policy breaks its contract and ScenarioError where the pool cannot be built.
    """
    env = _CountingEnvironment(initial_time=0)
    log = RequestLog(len(table))
    router = pool.make_router(pool.replicas)
    engines: list[Engine] = []

    def send(request: Request) -> None:
        replica = router.choose(request)
        if not 0 <= replica < len(engines):
            raise PolicyError(f"the router chose replica {replica} of {len(engines)}")
        engines[replica].submit(request)

    def publish(replica: int, waiting: int, running: int) -> None:
        router.publish(replica, ReplicaLoad(waiting, running))

    source = _Source(env, table, send, progress)
    for replica in range(pool.replicas):
        scheduler = pool.make_scheduler()
        order = getattr(scheduler, "waiting_order", None)
        kv = KVCache(
            pool.engine.num_gpu_blocks,
            pool.engine.block_size,
            prefix_caching=pool.engine.enable_prefix_caching,
            chains=table.chains,
            layout=pool.engine.kv_layout,
            num_host_blocks=pool.engine.num_cpu_blocks,
        )
        engine = Engine(
            env,
            pool.engine,
            pool.cost,
            scheduler,
            kv,
            log,
            waiting=None if order is None else SortedQueue(order),
            replica=replica,
            on_leave=source.left,
            on_load=publish if pool.replicas > 1 else None,
        )
        engines.append(engine)
    env.process(source.run())
    env.run(until=until_ns)
    for engine in engines:
        engine.close()
    status = np.frombuffer(log.status, np.int8)
    status[status < Status.FINISHED] = Status.UNFINISHED
    return RunLog(
        table=table,
        requests=log,
        steps=[engine.steps for engine in engines],
        pool=pool,
        end_ns=env.last_ns if until_ns is None else int(env.now),
        num_events=env.num_events,
    )
