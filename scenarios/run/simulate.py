"""Run a scenario: the one function behind the command line, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.build.builder import Build, build
from scenarios.build.workload.classes import class_slos
from scenarios.build.workload.table import build_table, check_warmup
from scenarios.run.bands import add_bands
from scenarios.run.summary import summarise
from scenarios.schema import Scenario
from sim.books.ledger import TimeBooks, time_books
from sim.books.metrics import RequestMetrics, request_metrics
from sim.books.token_times import token_times_ns
from sim.clock import to_ns
from sim.fleet.cluster import RunLog, run_cluster

_BANDS_UP_TO = 20_000
"""Requests: beyond, two more simulations take more time than a what-if should."""

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(kw_only=True)
class RunResult:
    """A finished run. ``summary`` is what summary.json holds; frames are made when asked for."""

    scenario: Scenario
    build: Build
    log: RunLog
    metrics: RequestMetrics
    books: TimeBooks
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request: times in seconds, accounts in integer nanoseconds."""
        from scenarios.run.frames import requests_frame

        return requests_frame(self.log, self.metrics, self.books)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a run of equal steps, all replicas, in order of replica and time."""
        from scenarios.run.frames import steps_frame

        return steps_frame(self.log)

    def token_times_s(self, request: int) -> NDArray[np.float64]:
        """When each output token of a finished request came out, seconds from the start."""
        times: NDArray[np.float64] = token_times_ns(self.log, request) / 1e9
        return times

    def figure(self, name: str, statistic: str = "mean") -> float | None:
        """One figure of the summary, e.g. ``figure("ttft", "p99")`` in seconds.

        Raises KeyError if there is no such figure.
        """
        for figure in self.summary["figures"]:
            if figure["name"] == name and figure["statistic"] in (statistic, "value"):
                value: float | None = figure["value"]
                return value
        raise KeyError(f"no figure {name} {statistic}")

    def write(self, folder: str | Path) -> Path:
        """Write the result folder; returns it."""
        from scenarios.run.result_folder import write_result

        return write_result(self, Path(folder))


def simulate(
    scenario: Scenario, *, progress: Callable[[int, int], None] | None = None
) -> RunResult:
    """Simulate a scenario to its end, as many times as it asks for.

    ``progress(sent, total)`` is called now and then. Raises ScenarioError, TraceError or
    PolicyError, each with a message for the user.
    """
    result = _simulate(scenario, progress)
    if scenario.replications > 1:
        from scenarios.run.replications import replicate

        replicate(result)
    return result


def _simulate(scenario: Scenario, progress: Callable[[int, int], None] | None) -> RunResult:
    built = build(scenario)
    table = build_table(scenario)
    check_warmup(scenario, table)
    until_ns = None if scenario.horizon_s is None else to_ns(scenario.horizon_s)
    started = time.perf_counter()
    log = run_cluster(
        table,
        built.fleet,
        until_ns=until_ns,
        progress=None if progress is None else lambda sent: progress(sent, len(table)),
    )
    wall_s = time.perf_counter() - started
    measure = partial(request_metrics, slo=class_slos(scenario), warmup_ns=to_ns(scenario.warmup_s))
    metrics = measure(log)
    books = time_books(log)
    summary = summarise(scenario, built, log, metrics, books, wall_s)
    if len(table) <= _BANDS_UP_TO if scenario.bands is None else scenario.bands:
        add_bands(
            summary, built, measure, lambda fleet: run_cluster(table, fleet, until_ns=until_ns)
        )
    return RunResult(
        scenario=scenario,
        build=built,
        log=log,
        metrics=metrics,
        books=books,
        summary=summary,
    )
