"""``fleetcast capacity``: the highest load that keeps an SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import open_in_browser, print_json
from scenarios.commands.options import (
    Cluster,
    Flags,
    Jobs,
    OpenPage,
    OutputFormat,
    Override,
    ScenarioFile,
    check_open,
    takes_flags,
)


@takes_flags(
    "model gpu tp replicas trace columns preset input_tokens output_tokens slo_ttft slo_tpot "
    "slo_e2e slo_itl seed"
)
def capacity(
    scenario: ScenarioFile = None,
    *,
    flags: Flags,
    override: Override = None,
    attainment: Annotated[
        float, typer.Option(help="Share of requests that must meet the SLO.")
    ] = 0.99,
    stable: Annotated[
        bool, typer.Option("--stable", help="The highest rate whose queue stays, whatever the SLO.")
    ] = False,
    vary: Annotated[
        str | None,
        typer.Option(
            help="What to vary: rate_per_s, sessions_per_h, max_concurrency or users. Default: by "
            "the scenario."
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option(help="Half-width of the 95% interval, relative to the capacity.")
    ] = 0.03,
    num_requests: Annotated[
        int | None,
        typer.Option(
            help="Requests counted in each run. Default: by --attainment; those of a scenario are "
            "of a single run."
        ),
    ] = None,
    for_rate: Annotated[
        float | None,
        typer.Option("--for-rate", help="A wanted load: how many replicas does it need?"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Simulate that load on those replicas.")
    ] = False,
    model_error: Annotated[
        bool, typer.Option(help="Also say how far off it is if the model is.")
    ] = True,
    jobs: Jobs = None,
    cluster: Cluster = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write: capacity.json and an HTML page.")
    ] = None,
    open_page: OpenPage = False,
    output_format: OutputFormat = "text",
) -> None:
    """Find the highest arrival rate, or the most users, that keeps an SLO, and what binds there.

    Exit codes: 0 done; 2 the input cannot be used; 130 interrupted.
    """
    from scenarios.experiments.capacity.find import find_capacity
    from scenarios.experiments.capacity.question import Question
    from scenarios.files.dump import dump_scenario
    from scenarios.files.flags import scenario_from_flags
    from scenarios.run.progress import shown_progress
    from scenarios.run.result_folder import json_text, make_folder, write_files

    check_open(open_page, out)
    if check and for_rate is None:
        raise typer.BadParameter("needs --for-rate, the load to simulate", param_hint="--check")
    chosen = scenario_from_flags(scenario, flags, override or [])
    question = Question(
        attainment=attainment,
        precision=precision,
        stable=stable,
        vary=vary,
        num_requests=num_requests,
        bands=model_error,
        load=for_rate,
        check=check,
    )
    if out is not None:
        make_folder(out)  # before a long run: a place that cannot be written
    with shown_progress() as progress:
        found = find_capacity(chosen, question, jobs=jobs, cluster=cluster, progress=progress)
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.capacity.report import write_capacity_page

        files = {"scenario.yaml": dump_scenario(chosen, out), "capacity.json": json_text(found)}
        write_files(out, files)
        page = write_capacity_page(out)
    if output_format == "json":
        print_json(found)
    else:
        from reports.capacity.report import capacity_report
        from reports.terminal import print_report

        print_report(capacity_report(found))
        if page is not None:
            print(f"\nresults in {out}, page in {page}")
    if open_page and page is not None:
        open_in_browser(page)
