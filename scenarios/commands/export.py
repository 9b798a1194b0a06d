"""``fleetcast export``: a result in other tools' formats."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

export_app = typer.Typer(
    help="Write a result for other tools.", no_args_is_help=True, rich_markup_mode=None
)


@export_app.callback()
def export() -> None:
    """Write a result for other tools."""


@export_app.command("perfetto")
def export_perfetto(
    folder: Annotated[Path, typer.Argument(help="A result folder.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, gzipped if .gz. Default: trace.json.gz in the folder."),
    ] = None,
    max_requests: Annotated[
        int, typer.Option(min=0, help="Most requests; more are sampled evenly.")
    ] = 20_000,
    start_s: Annotated[float, typer.Option("--from", min=0, help="Seconds of the run.")] = 0.0,
    end_s: Annotated[
        float | None, typer.Option("--to", help="Seconds of the run. Default: its end.")
    ] = None,
    every_step: Annotated[
        bool, typer.Option("--every-step", help="Each step too, not only runs of equal steps.")
    ] = False,
) -> None:
    """Write a trace of steps, requests and counters, to open at ui.perfetto.dev."""
    from reports.perfetto.export import TraceOptions, write_perfetto

    options = TraceOptions(
        max_requests=max_requests,
        start_s=start_s,
        end_s=math.inf if end_s is None else end_s,
        every_step=every_step,
    )
    written = write_perfetto(folder, out or folder / "trace.json.gz", options)
    requests = f"{written.num_requests:,}"
    if written.num_requests < written.num_requests_in_span:
        requests += f" of {written.num_requests_in_span:,}"
    typer.echo(
        f"{written.path}: {written.num_events:,} events, {requests} requests; "
        "open it at ui.perfetto.dev"
    )
