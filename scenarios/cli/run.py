"""``fleetcast simulate`` and ``fleetcast report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.app import EXIT_SLO_MISSED, check_format, open_in_browser


def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="Scenario YAML; or describe it with the options below.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model id (see `list models`) or a config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU (see `list gpus`).")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas behind the router.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace file to replay.")] = None,
    preset: Annotated[str | None, typer.Option(help="Workload preset.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean arrival rate, requests/s.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: most requests in flight.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Closed loop: users, each with one request at a time.")
    ] = None,
    input_tokens: Annotated[int | None, typer.Option(help="Prompt length.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Output length.")] = None,
    num_requests: Annotated[int | None, typer.Option(help="How many requests.")] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="TTFT target, s.")] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="TPOT target, s.")] = None,
    slo_e2e: Annotated[float | None, typer.Option(help="E2E target, s.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any field: section.key=value.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the scenario these options make.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder to write, with an HTML report.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the report in a browser; needs --out.")
    ] = False,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    require_attainment: Annotated[
        float | None,
        typer.Option(help=f"Exit with {EXIT_SLO_MISSED} if fewer requests are good."),
    ] = None,
) -> None:
    """Replay or generate requests through a simulated engine and print what happens.

    Exit codes: 0 done; 2 the input cannot be used; 3 --require-attainment was missed; 130
    interrupted.
    """
    from scenarios.commands import run_simulate
    from scenarios.flags import scenario_from_flags

    check_format(output_format)
    if require_attainment is not None and not 0 <= require_attainment <= 1:
        raise typer.BadParameter(
            f"{require_attainment:g} is not a share from 0 to 1", param_hint="--require-attainment"
        )
    if open_page and out is None:
        raise typer.BadParameter("there is no report to open without --out", param_hint="--open")
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
    open_page: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Write the HTML report of a result folder, a what-if's or a capacity search's, again."""
    from reports.capacity.facts import is_capacity
    from reports.whatif.folder import is_whatif

    if is_whatif(folder):
        from reports.whatif.page import write_whatif_page as write_page
    elif is_capacity(folder):
        from reports.capacity.page import write_capacity_page as write_page
    else:
        from reports.run.page import write_page

    page = write_page(folder)
    typer.echo(page)
    if open_page:
        open_in_browser(page)
