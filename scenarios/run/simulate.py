"""Run a scenario: the function behind the command line, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from scenarios.build.builder import build
from scenarios.build.memo import keep_between_runs
from scenarios.build.workload.classes import class_slos
from scenarios.build.workload.table import build_table, check_warmup
from scenarios.run.bands import add_bands
from scenarios.run.execution import WorkerLostError
from scenarios.run.execution.workers import spread
from scenarios.run.replications import combine, with_seed
from scenarios.run.result import RunResult
from scenarios.run.summary import summarize
from scenarios.schema import Scenario
from sim.books.ledger import time_books
from sim.books.metrics import request_metrics
from sim.clock import to_ns
from sim.fleet.cluster import run_cluster
from sim.request_table import RequestTable

_BANDS_UP_TO = 20_000
"""Most requests for automatic bands; above this, the two extra simulations take too long for a
what-if."""


def simulate(
    scenario: Scenario,
    *,
    progress: Callable[[int, int], None] | None = None,
    table: RequestTable | None = None,
) -> RunResult:
    """Simulate a scenario to its end, for all its replications.

    ``progress(sent, total)`` is called now and then. ``table`` has the requests of the first
    replication in place of the scenario's workload. Raises `ScenarioError`, `TraceError` or
    `PolicyError`, each with a message for the user.
    """
    result = _simulate(scenario, progress, table)
    if scenario.replications > 1:
        replicate(result)
    return result


def _simulate(
    scenario: Scenario,
    progress: Callable[[int, int], None] | None,
    given: RequestTable | None,
) -> RunResult:
    built = build(scenario)
    table = build_table(scenario) if given is None else given
    check_warmup(scenario, table)
    until_ns = None if scenario.horizon_s is None else to_ns(scenario.horizon_s)

    def sent(requests: int) -> None:
        if progress is not None:
            progress(requests, len(table))

    started = time.perf_counter()
    log = run_cluster(table, built.fleet, until_ns=until_ns, progress=sent)
    wall_s = time.perf_counter() - started
    measure = partial(request_metrics, slo=class_slos(scenario), warmup_ns=to_ns(scenario.warmup_s))
    metrics = measure(log)
    books = time_books(log)
    summary = summarize(scenario, built, log, metrics, books, wall_s)
    if len(table) <= _BANDS_UP_TO if scenario.bands is None else scenario.bands:
        add_bands(summary, is_closed=scenario.workload.max_concurrency is not None)
    return RunResult(
        scenario=scenario,
        build=built,
        log=log,
        metrics=metrics,
        books=books,
        summary=summary,
    )


def replicate(first: RunResult, *, jobs: int | None = None) -> None:
    """Run the other replications of a scenario and make the summary cover all of them, in place.

    Figures become means over the replications and get an ``interval``; requests are summed. The
    logs, frames and accounts by request stay those of the first replication.
    """
    scenario = first.scenario
    others = [
        with_seed(scenario, scenario.seed + i).model_copy(update={"bands": False})
        for i in range(1, scenario.replications)
    ]
    summaries: dict[int, dict[str, Any]] = {}
    for index, outcome in spread(_summary_of, others, jobs=jobs):
        if isinstance(outcome, WorkerLostError):
            raise outcome
        summaries[index] = outcome
    combine(first.summary, [summaries[index] for index in sorted(summaries)], scenario)


def _summary_of(scenario: Scenario) -> dict[str, Any]:
    keep_between_runs()
    return simulate(scenario).summary
