"""``fleetcast capacity``: the highest load that keeps an SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.app import check_format, open_in_browser


def capacity(
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
    input_tokens: Annotated[int | None, typer.Option(help="Prompt length.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Output length.")] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="TTFT target, s.")] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="TPOT target, s.")] = None,
    slo_e2e: Annotated[float | None, typer.Option(help="E2E target, s.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first replication.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any field: section.key=value.")
    ] = None,
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
    jobs: Annotated[int | None, typer.Option(help="Processes. Default: one a core.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write: capacity.json and an HTML page.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the page in a browser; needs --out.")
    ] = False,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Find the highest arrival rate, or the most users, that keeps an SLO, and what binds there.

    Exit codes: 0 done; 2 the input cannot be used; 130 interrupted.
    """
    from scenarios.capacity.command import run_capacity
    from scenarios.capacity.question import Question
    from scenarios.flags import scenario_from_flags

    check_format(output_format)
    if open_page and out is None:
        raise typer.BadParameter("there is no page to open without --out", param_hint="--open")
    if check and for_rate is None:
        raise typer.BadParameter("needs --for-rate, the load to simulate", param_hint="--check")
    chosen = scenario_from_flags(
        scenario,
        {
            "--model": model,
            "--gpu": gpu,
            "--tp": tp,
            "--replicas": replicas,
            "--trace": None if trace is None else str(trace),
            "--preset": preset,
            "--input-tokens": input_tokens,
            "--output-tokens": output_tokens,
            "--slo-ttft": slo_ttft,
            "--slo-tpot": slo_tpot,
            "--slo-e2e": slo_e2e,
            "--seed": seed,
        },
        override or [],
    )
    page = run_capacity(
        chosen,
        Question(
            attainment=attainment,
            precision=precision,
            stable=stable,
            vary=vary,
            num_requests=num_requests,
            bands=model_error,
            load=for_rate,
            check=check,
        ),
        jobs=jobs,
        out=out,
        as_json=output_format == "json",
    )
    if open_page and page is not None:
        open_in_browser(page)
