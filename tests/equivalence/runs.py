"""Runs that may jump over steps beside runs that take every step: both must leave the same log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet, PoolConfig
from sim.request_table import RequestTable
from tests.properties.conservation import audited, check_run_to_the_end
from tests.properties.outcome import full_outcome
from tests.properties.service_runs import stepped


def check_jumps(
    table: RequestTable, fleet: Fleet | PoolConfig, *, until_ns: int | None = None
) -> RunLog:
    """Assert that jumping changes nothing; returns the log of the run that jumped."""
    if isinstance(fleet, PoolConfig):
        fleet = Fleet(pools=(fleet,))
    log = run_cluster(table, fleet, until_ns=until_ns)
    by_steps = run_cluster(table, stepped(fleet), until_ns=until_ns)
    assert full_outcome(log) == full_outcome(by_steps)
    return log


def check_audited_jumps(
    table: RequestTable,
    pool: PoolConfig,
    *,
    follows_the_clock: bool = False,
    checks: Iterable[Callable[[RunLog], None]] = (),
) -> None:
    """Run to the end, jumping and by steps: both conserve everything, and jumping changes nothing.

    A scheduler that ``follows_the_clock`` decides by the time at which it is called, which jumps
    change; its runs are audited but not compared.
    """
    outcomes = []
    for fast_forward in (True, False):
        make, auditors = audited(pool.make_scheduler)
        engine = replace(pool.engine, fast_forward=fast_forward)
        log = run_cluster(table, replace(pool, engine=engine, make_scheduler=make))
        check_run_to_the_end(log, auditors)
        for check in checks:
            check(log)
        outcomes.append(full_outcome(log))
    assert follows_the_clock or outcomes[0] == outcomes[1]
