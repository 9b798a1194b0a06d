"""``fleetcast plan``: the cheapest fleet that meets its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_SLO_MISSED, open_in_browser, print_json
from scenarios.commands.options import Cluster, Jobs, OpenPage, OutputFormat, check_open


def plan(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN.yaml",
            help="The question: a scenario, demand, targets, gpus with prices, layouts, options.",
        ),
    ],
    jobs: Jobs = None,
    cluster: Cluster = None,
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
    from scenarios.experiments.plan.candidates import read_plan
    from scenarios.experiments.plan.find import find_plan
    from scenarios.run.progress import shown_progress
    from scenarios.run.result_folder import json_text, make_folder, write_files

    check_open(open_page, out)
    asked = read_plan(file)
    if out is not None:
        make_folder(out)  # before a long run: a place that cannot be written
    with shown_progress() as progress:
        found = find_plan(asked, jobs=jobs, cluster=cluster, progress=progress)
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.plan.report import write_plan_page

        files = {"plan.yaml": asked.text}
        if found["winner"] is not None:
            files["fleet.yaml"] = found["winner"]["scenario"]
        write_files(out, files | {"plan.json": json_text(found)})
        page = write_plan_page(out)
    if output_format == "json":
        print_json(found)
    else:
        from reports.plan.report import plan_report
        from reports.terminal import print_report

        print_report(plan_report(found))
        if page is not None:
            print(f"\nresults in {out}, page in {page}")
    if open_page and page is not None:
        open_in_browser(page)
    if not found["ranked"]:
        raise typer.Exit(EXIT_SLO_MISSED)
