"""``fleetcast report``: write the page of a result folder again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import open_in_browser


def report(
    folder: Annotated[Path, typer.Argument(help="A folder written with --out.")],
    plot: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a sweep: a figure over one or two axes, figure,axis[,axis[,heatmap]], e.g. "
            "ttft.p99,rate_per_s,gpu; may repeat."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Write the HTML page of a result folder again, whatever the command that wrote it."""
    from reports.capacity.report import write_capacity_page
    from reports.plan.report import write_plan_page
    from reports.run.report import write_run_page
    from reports.sweep.folder import is_sweep
    from reports.sweep.report import write_sweep_page
    from reports.whatif.report import write_whatif_page

    if plot and not is_sweep(folder):
        raise typer.BadParameter(f"{folder} is no sweep", param_hint="--plot")
    if is_sweep(folder):
        page = write_sweep_page(folder, plot or ())
    elif (folder / "whatif.json").is_file():
        page = write_whatif_page(folder)
    elif (folder / "capacity.json").is_file():
        page = write_capacity_page(folder)
    elif (folder / "plan.json").is_file():
        page = write_plan_page(folder)
    else:
        page = write_run_page(folder)
    typer.echo(page)
    if open_page:
        open_in_browser(page)
