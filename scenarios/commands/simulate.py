"""``fleetcast simulate``: run a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_SLO_MISSED, open_in_browser, print_json
from scenarios.commands.options import (
    Flags,
    OpenPage,
    OutputFormat,
    Override,
    ScenarioFile,
    check_open,
    takes_flags,
)


@takes_flags(
    "model gpu tp replicas trace columns preset rate concurrency users input_tokens output_tokens "
    "num_requests slo_ttft slo_tpot slo_e2e slo_itl seed"
)
def simulate(
    scenario: ScenarioFile = None,
    *,
    flags: Flags,
    override: Override = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the scenario these options make.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder to write, with an HTML report.")
    ] = None,
    open_page: OpenPage = False,
    output_format: OutputFormat = "text",
    require_attainment: Annotated[
        float | None,
        typer.Option(help=f"Exit with {EXIT_SLO_MISSED} if fewer requests are good."),
    ] = None,
) -> None:
    """Replay or generate requests through a simulated engine and print what happens.

    Exit codes: 0 done; 2 the input cannot be used; 3 --require-attainment was missed; 130
    interrupted.
    """
    from scenarios.files.dump import save_scenario
    from scenarios.files.flags import scenario_from_flags
    from scenarios.run.progress import shown_progress
    from scenarios.run.result_folder import make_folder
    from scenarios.run.simulate import simulate as run

    if require_attainment is not None and not 0 <= require_attainment <= 1:
        raise typer.BadParameter(
            f"{require_attainment:g} is not a share from 0 to 1", param_hint="--require-attainment"
        )
    check_open(open_page, out)
    chosen = scenario_from_flags(scenario, flags, override or [])
    if save is not None:
        save_scenario(chosen, save)
    if out is not None:
        make_folder(out)  # before a long run: a place that cannot be written
    with shown_progress("requests") as progress:
        result = run(chosen, progress=progress)
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.run.report import write_run_page

        result.write(out)
        page = write_run_page(out)
    if output_format == "json":
        print_json(result.summary)
    else:
        from reports.run.report import run_report
        from reports.terminal import print_report

        print_report(run_report(result.summary))
        if out is not None:
            print(f"results in {out}, report in {page}")
    if open_page and page is not None:
        open_in_browser(page)
    if require_attainment is not None:
        attainment = result.summary["slo"]["attainment"]
        if (attainment or 0.0) < require_attainment:
            raise typer.Exit(EXIT_SLO_MISSED)
