"""``fleetcast simulate`` and ``fleetcast report``: run a scenario, and write its page again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_SLO_MISSED, check_format, open_in_browser
from scenarios.commands.options import (
    Concurrency,
    Gpu,
    InputTokens,
    Model,
    NumRequests,
    OpenPage,
    OutputFormat,
    OutputTokens,
    Override,
    Preset,
    Rate,
    Replicas,
    ScenarioFile,
    Seed,
    SloE2e,
    SloTpot,
    SloTtft,
    TensorParallel,
    TraceFile,
    Users,
    check_open,
)


def simulate(
    scenario: ScenarioFile = None,
    model: Model = None,
    gpu: Gpu = None,
    tp: TensorParallel = None,
    replicas: Replicas = None,
    trace: TraceFile = None,
    preset: Preset = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    users: Users = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    num_requests: NumRequests = None,
    slo_ttft: SloTtft = None,
    slo_tpot: SloTpot = None,
    slo_e2e: SloE2e = None,
    seed: Seed = None,
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
    from scenarios.files.flags import scenario_from_flags
    from scenarios.run.command import run_simulate

    check_format(output_format)
    if require_attainment is not None and not 0 <= require_attainment <= 1:
        raise typer.BadParameter(
            f"{require_attainment:g} is not a share from 0 to 1", param_hint="--require-attainment"
        )
    check_open(open_page, out)
    chosen = scenario_from_flags(
        scenario,
        {
            "--model": model,
            "--gpu": gpu,
            "--tp": tp,
            "--replicas": replicas,
            "--trace": None if trace is None else str(trace),
            "--preset": preset,
            "--rate": rate,
            "--concurrency": concurrency,
            "--users": users,
            "--input-tokens": input_tokens,
            "--output-tokens": output_tokens,
            "--num-requests": num_requests,
            "--slo-ttft": slo_ttft,
            "--slo-tpot": slo_tpot,
            "--slo-e2e": slo_e2e,
            "--seed": seed,
        },
        override or [],
    )
    attainment = run_simulate(chosen, save=save, out=out, as_json=output_format == "json")
    if open_page and out is not None:
        open_in_browser(out / "report.html")
    if require_attainment is not None and (attainment or 0.0) < require_attainment:
        raise typer.Exit(EXIT_SLO_MISSED)


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
    from reports.sweep.folder import is_sweep

    if plot and not is_sweep(folder):
        raise typer.BadParameter(f"{folder} is no sweep", param_hint="--plot")
    if is_sweep(folder):
        from reports.sweep.report import write_sweep_page

        _show(write_sweep_page(folder, plot or ()), open_page=open_page)
        return
    if (folder / "whatif.json").is_file():
        from reports.whatif.report import write_whatif_page as write_page
    elif (folder / "capacity.json").is_file():
        from reports.capacity.report import write_capacity_page as write_page
    elif (folder / "plan.json").is_file():
        from reports.plan.report import write_plan_page as write_page
    else:
        from reports.run.report import write_run_page as write_page

    _show(write_page(folder), open_page=open_page)


def _show(page: Path, *, open_page: bool) -> None:
    typer.echo(page)
    if open_page:
        open_in_browser(page)
