"""Run what has no result yet, keep each result as it comes, and report progress."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scenarios.build.memo import keep_between_runs
from scenarios.build.policy_checks import describe
from scenarios.experiments.sweep.points import Run
from scenarios.experiments.sweep.results import Result, Results, Row, row_of
from scenarios.files.identity import result_address
from scenarios.run.execution.errors import WorkerLostError
from scenarios.run.execution.spread import spread
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.errors import FleetcastError, ScenarioError

Progress = Callable[[int, int, int], None]
"""Called with the numbers of finished runs, of all runs, and of failed runs."""


class Done(NamedTuple):
    """What a worker returns for one run."""

    result: Result
    files: dict[str, bytes] | None
    """A full result folder, if it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What this start of a sweep did."""

    known: int
    """Results that existed before."""
    simulated: int
    wall_s: float
    core_s: float
    """CPU seconds inside simulations."""


def run_all(
    runs: Sequence[Run],
    results: Results,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    keep: Path | None = None,
    progress: Progress | None = None,
    check: Callable[[Row], None] | None = None,
) -> Spent:
    """Simulate the runs that ``results`` lacks and add each result as soon as it is there.

    Runs with one address are simulated once. ``keep`` is a folder for full result folders, by
    address. ``check`` is called with the first available row before the others are waited for, and
    may raise. Whatever a run raises becomes its error. Raises `ScenarioError` if workers would
    compute something else: other code, or other files under the same names.
    """
    wanted = {run.key: run for run in runs}
    kept = {key for key in wanted if keep is None or (keep / key / "summary.json").is_file()}
    there = {
        key
        for key, result in results.known.items()
        if key in wanted and (key in kept or result.status != "done")
    }
    todo = [run for key, run in wanted.items() if key not in there]
    failed = sum(results.known[key].status != "done" for key in there)
    if progress is not None:
        progress(len(there), len(wanted), failed)
    rows = (results.known[key].row for key in there if results.known[key].row)
    first = next(rows, None)
    if check is not None and first is not None:
        check(first)
    started, core_s = time.perf_counter(), 0.0
    outcomes = spread(partial(run_one, keep=keep is not None), todo, jobs=jobs, cluster=cluster)
    for done, (index, outcome) in enumerate(outcomes, len(there) + 1):
        if isinstance(outcome, WorkerLostError):
            result, files = Result(key=todo[index].key, status="lost", error=str(outcome)), None
        else:
            result, files = outcome
        if keep is not None and files is not None:
            _write_folder(keep / result.key, files)
        results.add(result)
        if check is not None and first is None and result.row:
            first = result.row
            check(first)
        failed += result.status != "done"
        core_s += result.core_s
        if progress is not None:
            progress(done, len(wanted), failed)
    wall_s = time.perf_counter() - started
    return Spent(known=len(there), simulated=len(todo), wall_s=wall_s, core_s=core_s)


def run_one(run: Run, *, keep: bool) -> Done:
    """Run one simulation, in any process; its errors become part of the result."""
    keep_between_runs()
    _check_same(run)
    started = time.process_time()
    files = None
    try:
        simulated = simulate(run.scenario)
        row = row_of(simulated)
        if keep:
            files = _folder_of(simulated)
        result = Result(key=run.key, status="done", row=row)
    except FleetcastError as error:
        result = Result(key=run.key, status="failed", error=str(error))
    except Exception as error:  # a bug of ours, or no memory: the other points go on
        result = Result(key=run.key, status="lost", error=f"the simulator broke: {describe(error)}")
    spent = time.process_time() - started
    return Done(
        Result(
            key=result.key,
            status=result.status,
            row=result.row,
            error=result.error,
            core_s=spent,
        ),
        files,
    )


def _check_same(run: Run) -> None:
    """Raise `ScenarioError` if this worker has other code, or other files where the scenario
    names some."""
    if result_address(run.scenario) != run.key:
        raise ScenarioError(
            "a worker has another fleetcast, other libraries, or other files than this machine: "
            "install the same on all, and put traces and calibrations where all find them by the "
            "same path"
        )


def _folder_of(result: RunResult) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        result.write(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Write a result folder, its summary last, which marks the folder as complete."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=lambda name: name == "summary.json"):
            (folder / name).write_bytes(files[name])
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from None
