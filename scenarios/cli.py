"""The command line. Answers at once: what a command needs is imported when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

EXIT_BAD_INPUT = 2
EXIT_SLO_MISSED = 3
EXIT_BEYOND_TOLERANCE = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count


class _Commands(TyperGroup):
    """Turns what a user can cause into one message and an exit code; a traceback is our bug."""

    def invoke(self, ctx: Any) -> Any:
        from sim.errors import FleetcastError

        try:
            return super().invoke(ctx)
        except FleetcastError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    name="fleetcast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help comes in half the time
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from scenarios import __version__

        typer.echo(f"fleetcast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Forecast what an LLM serving fleet will do: TTFT, TPOT, goodput, and why."""


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

    Exit codes: 0 done; 2 the input cannot be used; 3 --require-attainment was missed; 130
    interrupted.
    """
    from scenarios.commands import run_simulate
    from scenarios.flags import scenario_from_flags

    if output_format not in ("text", "json"):
        raise typer.BadParameter(
            f"{output_format!r} is neither text nor json", param_hint="--format"
        )
    if require_attainment is not None and not 0 <= require_attainment <= 1:
        raise typer.BadParameter(
            f"{require_attainment:g} is not a share from 0 to 1", param_hint="--require-attainment"
        )
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
    if require_attainment is not None and (attainment or 0.0) < require_attainment:
        raise typer.Exit(EXIT_SLO_MISSED)


@app.command()
def validate(
    folder: Annotated[Path, typer.Argument(help="Folder with KEY_info.json and the logs.")],
    only: Annotated[
        list[str] | None, typer.Option(help="A KEY to score; repeat for more. Default: all.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave out steps, conformance or runs; may repeat.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Profile or calibration file. Default: by the recorded version."),
    ] = None,
    operators: Annotated[
        str, typer.Option(help="Kernel times: fitted, datasheet, aic, or .parquet tables.")
    ] = "fitted",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write: accuracy.json and an HTML page.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Predict what was measured on a real engine, and print the errors."""
    from scenarios.validation.command import run_validate

    if output_format not in ("text", "json"):
        raise typer.BadParameter(
            f"{output_format!r} is neither text nor json", param_hint="--format"
        )
    as_json = output_format == "json"
    run_validate(
        folder,
        only=only or [],
        skip=skip or [],
        profile=profile,
        operators=operators,
        out=out,
        as_json=as_json,
    )


@app.command()
def compare(
    run: Annotated[Path, typer.Argument(help="Result folder of a simulation.")],
    measured: Annotated[Path, typer.Argument(help="Results of a load test, gzipped or not.")],
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Exit with {EXIT_BEYOND_TOLERANCE} if a relative error is larger: 0.1, or "
            "ttft=0.1; may repeat."
        ),
    ] = None,
    measured_format: Annotated[
        str | None,
        typer.Option(
            help="vllm-bench, guidellm, aiperf, sglang-bench, vllm-prometheus or csv. Default: "
            "recognised."
        ),
    ] = None,
    run_name: Annotated[
        str | None, typer.Option("--run", help="Which run, where there are several.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Compare a simulation with the results of a real load test, and print the errors.

    Exit codes: 0 done; 2 the input cannot be used; 4 an error is beyond --tolerance.
    """
    from scenarios.compare_command import run_compare

    if output_format not in ("text", "json"):
        raise typer.BadParameter(
            f"{output_format!r} is neither text nor json", param_hint="--format"
        )
    beyond = run_compare(
        run,
        measured,
        tolerances=tolerance or [],
        measured_format=measured_format,
        run=run_name,
        as_json=output_format == "json",
    )
    for line in beyond:
        typer.echo(line, err=True)
    if beyond:
        raise typer.Exit(EXIT_BEYOND_TOLERANCE)


calibrate_app = typer.Typer(
    help="Fit the cost model to measurements.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(calibrate_app, name="calibrate")


@calibrate_app.command("engine")
def calibrate_engine(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of KEY_info.json and step logs, or one file of each KEY."),
    ],
    out: Annotated[Path, typer.Option(help="The calibration file to write.")],
    only: Annotated[
        list[str] | None, typer.Option(help="A KEY to fit to; repeat for more. Default: all.")
    ] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Leave out the half of the controlled steps that judges.")
    ] = False,
    serving: Annotated[bool, typer.Option(help="Fit to serving runs too.")] = True,
    machine: Annotated[str, typer.Option(help="What the host is, for the record.")] = "not named",
    base: Annotated[str, typer.Option(help="Profile to start from.")] = "vllm-0.25",
) -> None:
    """Fit an engine's host terms and a GPU's efficiency to step logs."""
    from scenarios.calibrate_command import run_calibrate_engine

    typer.echo(
        run_calibrate_engine(
            paths,
            out=out,
            only=only or [],
            half=half,
            serving=serving,
            machine=machine,
            base=base,
        )
    )


@app.command("list")
def list_names(
    what: Annotated[str, typer.Argument(help="models, gpus, policies, presets or profiles.")],
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
    """Console entry."""
    # Looking through every installed distribution for pydantic plugins takes 50 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        app()
    finally:
        _flush_stdout()


def _flush_stdout() -> None:
    """Write what is left; a reader that has gone (``| head -1``) is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter would flush again on its way out, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
