"""The command line. Answers at once: what a command needs is imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

EXIT_BAD_INPUT = 2
EXIT_SLO_MISSED = 3

app = typer.Typer(
    name="fleetcast",
    help="Forecast what an LLM serving fleet will do: TTFT, TPOT, goodput, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
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
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    require_attainment: Annotated[
        float | None,
        typer.Option(help=f"Exit with {EXIT_SLO_MISSED} if fewer requests are good."),
    ] = None,
) -> None:
    """Replay or generate requests through a simulated engine and print what happens.

    Exit codes: 0 done; 2 the input cannot be used; 3 --require-attainment was missed.
    """
    from scenarios.commands import run_simulate
    from scenarios.flags import scenario_from_flags

    if output_format not in ("text", "json"):
        raise typer.BadParameter(
            f"{output_format!r} is neither text nor json", param_hint="--format"
        )
    chosen = scenario_from_flags(
        scenario,
        {
            "model": model,
            "hardware.gpu": gpu,
            "engine.tensor_parallel_size": tp,
            "pool.replicas": replicas,
            "workload.trace.path": None if trace is None else str(trace),
            "workload.preset": preset,
            "workload.generator.input_tokens.fixed": input_tokens,
            "workload.generator.output_tokens.fixed": output_tokens,
            "workload.rate_per_s": rate,
            "workload.max_concurrency": concurrency,
            "workload.num_requests": num_requests,
            "slo.ttft_s": slo_ttft,
            "slo.tpot_s": slo_tpot,
            "slo.e2e_s": slo_e2e,
            "seed": seed,
        },
        override or [],
    )
    attainment = run_simulate(chosen, save=save, out=out, as_json=output_format == "json")
    if require_attainment is not None and (attainment or 0.0) < require_attainment:
        raise typer.Exit(EXIT_SLO_MISSED)


@app.command("list")
def list_names(
    what: Annotated[str, typer.Argument(help="models, gpus, policies or presets.")],
) -> None:
    """List what a scenario can name."""
    from scenarios.commands import print_names

    print_names(what)


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors and generators."""
    from scenarios.commands import print_schema

    print_schema()


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A result folder.")],
) -> None:
    """Write the HTML report of a result folder again."""
    from reports.page import write_page

    typer.echo(write_page(folder))


def main() -> None:
    """Console entry: errors meant for the user are one message and an exit code, no traceback."""
    from sim.errors import FleetcastError

    try:
        app()
    except FleetcastError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
