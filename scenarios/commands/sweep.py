"""``fleetcast sweep``: many points of a scenario, over axes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from scenarios.commands.app import EXIT_TERMINATED, open_in_browser, print_json
from scenarios.commands.options import Cluster, Jobs, OutputFormat


def sweep(
    file: Annotated[Path, typer.Argument(help="Sweep YAML: a scenario, and axes over its fields.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results, table and page. Default: results/<name of the file>."
        ),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also keep the full result folder of every run.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run points again that failed before.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    output_format: OutputFormat = "text",
) -> None:
    """Simulate every point of a grid, of lists that go together, or of random draws.

    All results are in one table, sweep.parquet. A sweep that was stopped goes on where it was: run
    the same command again. A point that cannot be run is a row with its error. `fleetcast scenario
    init-sweep` writes a file to start from.

    Exit codes: 0 done; 2 the input cannot be used; 130 interrupted, 143 terminated, with what was
    done kept.
    """
    from scenarios.experiments.sweep.run import run_sweep
    from scenarios.run.progress import shown_progress

    try:
        with _stoppable(), shown_progress(lines=True) as progress:
            swept = run_sweep(
                file,
                out=out,
                jobs=jobs,
                cluster=cluster,
                keep=keep,
                retry_failed=retry_failed,
                progress=progress,
                say=lambda text: print(text, file=sys.stderr),
            )
    except Terminated:
        raise typer.Exit(EXIT_TERMINATED) from None
    from reports.sweep.report import write_sweep_page

    page = write_sweep_page(swept.folder)
    if output_format == "json":
        print_json(swept.content)
    else:
        from reports.sweep.report import sweep_report
        from reports.terminal import print_report

        print_report(sweep_report(swept.content, swept.table))
        print(f"\ntable in {swept.folder / 'sweep.parquet'}, page in {page}")
    if open_page:
        open_in_browser(page)


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


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
