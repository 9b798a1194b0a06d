"""Run a sweep: simulate what has no result yet, keep each result as it comes, write the table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scenarios.build.policy_checks import describe
from scenarios.experiments.points import Point, check_worker, run_points
from scenarios.experiments.sweep.content import check_columns, make_content
from scenarios.experiments.sweep.grid import Grid, make_grid
from scenarios.experiments.sweep.results import (
    Result,
    Results,
    Spent,
    row_of,
    sweep_table,
    write_table,
)
from scenarios.experiments.sweep.sweep_file import Sweep, read_sweep
from scenarios.files.dump import dump_scenario
from scenarios.run.execution import WorkerLostError
from scenarios.run.execution.workers import Workers
from scenarios.run.progress import Progress
from scenarios.run.result import RunResult
from scenarios.run.result_folder import json_text, make_folder, write_files
from scenarios.run.simulate import simulate
from sim.errors import FleetcastError

if TYPE_CHECKING:
    import pandas as pd


class Swept(NamedTuple):
    """A sweep whose table was written."""

    folder: Path
    content: dict[str, Any]
    """What sweep.json holds, as plain values."""
    table: pd.DataFrame


def run_sweep(
    path: Path,
    *,
    out: Path | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    keep: bool = False,
    retry_failed: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Swept:
    """Run every point of a sweep file that has no result yet, and write the table and its facts.

    Results are kept in ``out``, by default ``results/<name of the file>``; with ``keep`` the full
    result folder of every run is, too. ``retry_failed`` runs points again that failed before.
    ``jobs`` and ``cluster``: see `scenarios.run.execution.workers.Workers`. ``say`` is called with
    what there is to do, and with what was done if it is interrupted. Raises `ScenarioError` for a
    file that cannot be used, and KeyboardInterrupt after writing what is done.
    """
    with Workers(jobs, cluster) as workers:
        sweep = read_sweep(path)
        grid = make_grid(sweep)
        folder = Path("results") / sweep.name if out is None else out
        make_folder(folder)
        results = Results(folder)
        if retry_failed:
            results.forget_failed()
        say(_plan_text(grid, results, folder))
        runs = folder / "runs" if keep else None
        try:
            spent = _run_all(sweep, grid, results, workers, runs, progress)
        except KeyboardInterrupt:
            _write(sweep, grid, results, folder, None)
            done = sum(point.address in results.known for point in grid.points)
            say(
                f"stopped: {done:,} of {len(grid.points):,} runs are kept in {folder}; the same "
                "command goes on from there"
            )
            raise
        finally:
            results.close()
        return _write(sweep, grid, results, folder, spent)


def _run_all(
    sweep: Sweep,
    grid: Grid,
    results: Results,
    workers: Workers,
    runs: Path | None,
    progress: Progress | None,
) -> Spent:
    """Simulate the points that ``results`` lacks and add each result as soon as it is there.

    ``runs`` is a folder for full result folders, by address. The columns that the file names are
    checked with a few requests of the first point before anything else is run, and with the first
    row. Raises `ScenarioError` for a column that is not there, or if workers would compute
    something else.
    """
    addresses = {point.address for point in grid.points}
    memo = {
        key: result
        for key, result in results.known.items()
        if key in addresses
        and (result.status != "done" or runs is None or (runs / key / "summary.json").is_file())
    }
    known = set(memo)
    is_checked = False

    def check(result: Result) -> None:
        nonlocal is_checked
        if result.row and not is_checked:
            is_checked = True
            check_columns(sweep, list(result.row))

    def kept(point: Point, outcome: Result | WorkerLostError) -> Result:
        if isinstance(outcome, WorkerLostError):
            outcome = Result(key=point.address, status="lost", error=str(outcome))
        if runs is not None and outcome.files is not None:
            write_files(runs / outcome.key, outcome.files)
        result = replace(outcome, files=None)
        results.add(result)
        check(result)
        return result

    for result in memo.values():
        check(result)
    if not is_checked and grid.points and _names_columns(sweep):
        columns = _columns_of_few(grid.points[0])
        if columns:
            check_columns(sweep, columns)
    started = time.perf_counter()
    run_points(
        grid.points,
        partial(run_one, keep=runs),
        workers,
        memo=memo,
        keep=kept,
        has_failed=lambda result: result.status != "done",
        progress=progress,
    )
    return Spent(
        known=len(known),
        simulated=len(memo) - len(known),
        wall_s=time.perf_counter() - started,
        core_s=sum(result.core_s for key, result in memo.items() if key not in known),
    )


def run_one(point: Point, *, keep: Path | None) -> Result:
    """Run one simulation, in any process; its errors become part of the result.

    ``keep`` is the folder in which its own will lie, None if only the row is kept.
    """
    check_worker(point)
    started = time.process_time()
    try:
        simulated = simulate(point.scenario)
        row = row_of(simulated)
        files = None if keep is None else _folder_of(simulated, keep / point.address)
        result = Result(key=point.address, status="done", row=row, files=files)
    except FleetcastError as error:
        result = Result(key=point.address, status="failed", error=str(error))
    except Exception as error:  # a bug of ours, or no memory: the other points go on
        why = f"the simulator broke: {describe(error)}"
        result = Result(key=point.address, status="lost", error=why)
    return replace(result, core_s=time.process_time() - started)


_FEW_REQUESTS = 50


def _names_columns(sweep: Sweep) -> bool:
    file = sweep.file
    return bool(file.best or file.require or file.plots)


def _columns_of_few(point: Point) -> list[str]:
    """Return the columns that a few requests of a point give; none if they cannot be run."""
    few = {"num_requests": _FEW_REQUESTS, "duration_s": None}
    workload = point.scenario.workload.model_copy(update=few)
    update = {"workload": workload, "warmup_s": 0.0, "replications": 1, "bands": False}
    try:
        return list(row_of(simulate(point.scenario.model_copy(update=update))))
    except FleetcastError:
        return []  # the runs themselves will say why


def _folder_of(result: RunResult, lies_in: Path) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        result.write(folder, lies_in=lies_in)
        paths = sorted(Path(folder).iterdir(), key=lambda path: path.name == "summary.json")
        return {path.name: path.read_bytes() for path in paths}


def _write(sweep: Sweep, grid: Grid, results: Results, folder: Path, spent: Spent | None) -> Swept:
    """Write the table, the sweep, its scenario and, last, sweep.json."""
    table = sweep_table(grid, results.known)
    content = make_content(sweep, grid, table, spent)
    write_table(table, folder)
    files = {
        "sweep.yaml": sweep.text,
        "scenario.yaml": dump_scenario(grid.points[0].scenario, folder),
        "sweep.json": json_text(content),
    }
    write_files(folder, files)
    return Swept(folder, content, table)


def _plan_text(grid: Grid, results: Results, folder: Path) -> str:
    points = grid.points
    there = sum(point.address in results.known for point in points)
    left_out = sum(grid.left_out.values())
    words = f"{_counted(len(grid.combinations), 'point')}, {_counted(len(points), 'run')}"
    words += f"; constraints leave out {_counted(left_out, 'point')}" if left_out else ""
    words += f"; {grid.refused:,} cannot be built" if grid.refused else ""
    return words + (f"; {there:,} done before in {folder}" if there else f"; results in {folder}")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
