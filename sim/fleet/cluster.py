"""One simulation of a fleet, fed from a request table, start to end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sim.clock import Clock
from sim.errors import ScenarioError
from sim.fleet.config import Fleet, PoolConfig
from sim.fleet.service import ServiceLog
from sim.fleet.wiring import wire
from sim.kv.tiers import Tiers
from sim.recorder import RequestLog
from sim.request_table import RequestTable
from sim.step_log import StepLog

_COLLECT_AFTER = (50_000, 20, 100)
"""Threshold for `gc.set_threshold`: with Python's own, a quarter of a large fleet's time goes to
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """All that a simulation leaves behind; metrics and ledgers are functions of it."""

    table: RequestTable
    requests: RequestLog
    steps: list[StepLog]
    """One step log per replica."""
    fleet: Fleet
    end_ns: int
    """When the simulation stopped: at the last event, or at the horizon."""
    num_events: int
    """Number of SimPy events processed."""
    link_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes that crossed each link between engines."""
    service: ServiceLog = field(default_factory=ServiceLog)
    """What happened around the engines."""
    tiers: dict[int, Tiers] = field(default_factory=dict)
    """Tiers below the device memory of each replica."""

    @property
    def pool(self) -> PoolConfig:
        """The first pool: the only one, or the one that takes the arrivals."""
        return self.fleet.pools[0]


def run_cluster(
    table: RequestTable,
    fleet: Fleet | PoolConfig,
    *,
    until_ns: int | None = None,
    progress: Callable[[int], None] = lambda num_sent: None,
) -> RunLog:
    """Simulate the table on a fleet (or one pool) until all requests have left, or until the
    horizon.

    ``progress`` is called now and then with the number of requests sent. Raises PolicyError if a
    policy breaks its contract, and ScenarioError if a pool cannot be built.
    """
    if isinstance(fleet, PoolConfig):
        fleet = Fleet(pools=(fleet,))
    fleet.check_roles()
    env = Clock(initial_time=0)
    cluster = wire(env, table, fleet, progress)
    env.process(cluster.source.run())
    try:
        with _few_collections():
            env.run(until=until_ns)
    except OverflowError:
        raise ScenarioError(
            "the run would last longer than the clock counts, 292 years: a rate, a bandwidth or a "
            "factor is far too small or too large"
        ) from None
    for engine in cluster.engines:
        engine.close()
    cluster.requests.close()
    return RunLog(
        table=table,
        requests=cluster.requests,
        steps=[engine.steps for engine in cluster.engines],
        fleet=fleet,
        end_ns=env.last_ns if until_ns is None else int(env.now),
        num_events=env.num_events,
        link_bytes=cluster.network.moved_bytes,
        service=cluster.service,
        tiers={e.replica: t for e in cluster.engines if (t := e.view.kv.tiers) is not None},
    )


@contextmanager
def _few_collections() -> Iterator[None]:
    """Run the garbage collector rarely: a run makes millions of objects and almost no cycles."""
    before = gc.get_threshold()
    if gc.isenabled():
        gc.set_threshold(*(max(pair) for pair in zip(before, _COLLECT_AFTER, strict=True)))
    try:
        yield
    finally:
        gc.set_threshold(*before)
