"""``fleetcast sweep``: many points of a scenario, over axes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_TERMINATED, check_format, open_in_browser
from scenarios.commands.options import Jobs, OutputFormat

Cluster = Annotated[
    str | None,
    typer.Option(
        help="Run on a cluster: ray or ray://HOST:PORT, dask or a Dask scheduler (tcp://HOST:PORT)."
    ),
]


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
    from scenarios.experiments.sweep.command import Terminated, run_sweep

    check_format(output_format)
    try:
        page = run_sweep(
            file,
            out=out,
            jobs=jobs,
            cluster=cluster,
            keep=keep,
            retry_failed=retry_failed,
            as_json=output_format == "json",
        )
    except Terminated:
        raise typer.Exit(EXIT_TERMINATED) from None
    if open_page:
        open_in_browser(page)
