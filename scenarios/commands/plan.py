"""``fleetcast plan``: the cheapest fleet that meets its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_SLO_MISSED, check_format, open_in_browser
from scenarios.commands.options import Jobs, OpenPage, OutputFormat, check_open


def plan(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN.yaml",
            help="The question: a scenario, demand, targets, gpus with prices, layouts, options.",
        ),
    ],
    jobs: Jobs = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write: plan.json, fleet.yaml (to simulate), an HTML page."),
    ] = None,
    open_page: OpenPage = False,
    output_format: OutputFormat = "text",
) -> None:
    """Find the cheapest fleet that meets percentile targets at the planned load.

    Candidates are all GPUs, layouts and options of the plan. Those that proven bounds rule out are
    dropped; the others are simulated with their router, and the answer says why each was kept or
    dropped. With search: {method: optuna} a sample is tried, for spaces too large to look at each.

    Exit codes: 0 done; 2 the input cannot be used; 3 no fleet meets the targets; 130 interrupted.
    """
    from scenarios.experiments.plan.command import run_plan

    check_format(output_format)
    check_open(open_page, out)
    page, found = run_plan(file, jobs=jobs, out=out, as_json=output_format == "json")
    if open_page and page is not None:
        open_in_browser(page)
    if not found:
        raise typer.Exit(EXIT_SLO_MISSED)
