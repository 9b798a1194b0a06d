"""The work of ``fleetcast sweep``, once its options are read."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scenarios.experiments.sweep.content import check_columns, make_content
from scenarios.experiments.sweep.points import Points, make_points
from scenarios.experiments.sweep.results import Results, sweep_table, write_table
from scenarios.experiments.sweep.run import Progress, Spent, run_all
from scenarios.experiments.sweep.sweep_file import Sweep, read_sweep
from scenarios.files.dump import dump_scenario
from scenarios.run.execution.spread import check_cluster
from scenarios.run.result_folder import make_folder
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

_EVERY_S = 30.0


@contextmanager
def shown() -> Iterator[Progress]:
    """Yield a function to call after each run, which shows progress on stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)

        def show(done: int, total: int, failed: int) -> None:
            words = f"simulating, {failed:,} failed" if failed else "simulating"
            bar.update(task, completed=done, total=total, description=words)

        yield show


class _Lines:
    """Print a line every half minute, with the time left at the pace so far."""

    def __init__(self) -> None:
        self._started_s = self._said_s = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, failed: int) -> None:
        now_s = time.monotonic()
        if self._first is None:
            self._first = done
        if now_s - self._said_s < _EVERY_S or done == self._first:
            return
        self._said_s = now_s
        left_s = (now_s - self._started_s) / (done - self._first) * (total - done)
        words = f", {failed:,} failed" if failed else ""
        print(
            f"{done:,} of {total:,} runs{words}, about {time_text(left_s)} left",
            file=sys.stderr,
            flush=True,
        )


def time_text(seconds: float) -> str:
    """Return a duration in short: ``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Terminated(BaseException):
    """The process received SIGTERM."""


def run_sweep(
    path: Path,
    *,
    out: Path | None,
    jobs: int | None,
    cluster: str | None,
    keep: bool,
    retry_failed: bool,
    as_json: bool,
) -> Path:
    """Run what has no result yet, write table and page, print the answer; return the page's path.

    Raises `ScenarioError` for a file that cannot be used; `Terminated` and KeyboardInterrupt after
    writing what is done.
    """
    if cluster is not None:
        check_cluster(cluster)
    sweep = read_sweep(path)
    points = make_points(sweep)
    folder = Path("results") / sweep.name if out is None else out
    make_folder(folder)
    results = Results(folder)
    if retry_failed:
        results.forget_failed()
    print(_plan_text(points, results, folder), file=sys.stderr)
    try:
        with _stoppable(), shown() as progress:
            spent = run_all(
                points.runs,
                results,
                jobs=jobs,
                cluster=cluster,
                keep=folder / "runs" if keep else None,
                progress=progress,
                check=lambda row: check_columns(sweep, list(row)),
            )
    except (KeyboardInterrupt, Terminated):
        write_sweep(sweep, points, results, folder, None)
        done = sum(run.key in results.known for run in points.runs)
        print(
            f"stopped: {done:,} of {len(points.runs):,} runs are kept in {folder}; the same "
            "command goes on from there",
            file=sys.stderr,
        )
        raise
    finally:
        results.close()
    from reports.sweep.report import write_sweep_page

    content, frame = write_sweep(sweep, points, results, folder, spent)
    page = write_sweep_page(folder)
    if as_json:
        print(json.dumps(content, indent=1, allow_nan=False))
    else:
        from reports.sweep.report import sweep_report
        from reports.terminal import print_report

        print_report(sweep_report(content, frame))
        print(f"\ntable in {folder / 'sweep.parquet'}, page in {page}")
    return page


def write_sweep(
    sweep: Sweep, points: Points, results: Results, folder: Path, spent: Spent | None
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Write sweep.parquet, sweep.json, the sweep and its scenario; return JSON content and
    table."""
    frame = sweep_table(points, results.known)
    content = make_content(sweep, points, frame, spent)
    write_table(frame, folder)
    try:
        (folder / "sweep.yaml").write_text(sweep.text, encoding="utf-8")
        scenario = points.runs[0].scenario
        (folder / "scenario.yaml").write_text(dump_scenario(scenario), encoding="utf-8")
        text = json.dumps(content, indent=1, allow_nan=False)
        # last, so that it marks a complete folder
        (folder / "sweep.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from None
    return content, frame


def _plan_text(points: Points, results: Results, folder: Path) -> str:
    runs = points.runs
    there = sum(run.key in results.known for run in runs)
    left_out = sum(points.left_out.values())
    refused = sum(point.refused is not None for point in points.points)
    words = f"{_counted(len(points.points), 'point')}, {_counted(len(runs), 'run')}"
    words += f"; constraints leave out {_counted(left_out, 'point')}" if left_out else ""
    words += f"; {refused:,} cannot be built" if refused else ""
    return words + (f"; {there:,} done before in {folder}" if there else f"; results in {folder}")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGTERM, which schedulers and containers send, stop the sweep as Ctrl-C does."""

    def stop(*_: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # called from a thread, which cannot set signal handlers
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
