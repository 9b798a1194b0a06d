"""``fleetcast scenario``: starting files, new or read from a server's command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.options import Flags, Override, takes_flags

NewFile = Annotated[Path | None, typer.Argument(help="File to write. Default: standard output.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Leave out a flag that is not modelled or not known; may repeat."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="List the flags without effect on timing, too.")
]
OutFile = Annotated[
    Path | None, typer.Option(help="File to write. Default: standard output, the report apart.")
]

scenario_app = typer.Typer(
    help="Write a scenario: a new one, or that of a server's command line.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@scenario_app.command("init")
@takes_flags(
    "model gpu tp replicas trace columns preset rate concurrency input_tokens output_tokens "
    "num_requests slo_ttft slo_tpot slo_e2e slo_itl seed"
)
def init(
    file: NewFile = None,
    *,
    flags: Flags,
    override: Override = None,
    force: Force = False,
) -> None:
    """Write a scenario with every field there is: the usual ones set, the others commented out."""
    from scenarios.commands.starter import starting_scenario

    text = starting_scenario(flags, override or [], file)
    _print_or_write(text, file, "simulate", force=force)


@scenario_app.command("init-sweep")
def init_sweep(
    file: NewFile = None,
    scenario: Annotated[
        str, typer.Option(help="The scenario file of all points, from the sweep's folder.")
    ] = "scenario.yaml",
    force: Force = False,
) -> None:
    """Write a sweep over a scenario with every field there is: axes set, the others explained."""
    from scenarios.commands.starter import starting_sweep

    _print_or_write(starting_sweep(scenario, file), file, "sweep", force=force)


def _from_engine(engine: str, about: str) -> None:
    """Add the command that reads the command lines of an engine's server."""

    @scenario_app.command(f"from-{engine}", help=about)
    @takes_flags(
        "model gpu trace columns preset rate concurrency input_tokens output_tokens num_requests "
        "slo_ttft slo_tpot slo_e2e slo_itl"
    )
    def from_command(
        command: Annotated[
            list[str],
            typer.Argument(
                help="The command in quotes, or after `--`; `-` reads it from standard input."
            ),
        ],
        *,
        flags: Flags,
        override: Override = None,
        ignore: Ignore = None,
        verbose: Verbose = False,
        out: OutFile = None,
        force: Force = False,
    ) -> None:
        from scenarios.server_flags.reading import read_command

        reading = read_command(
            engine,
            [sys.stdin.read()] if command == ["-"] else command,
            flags=flags,
            overrides=override or [],
            ignored=ignore or [],
            verbose=verbose,
            out=out,
        )
        _print_or_write(
            reading.text,
            out,
            "simulate",
            force=force,
            report=reading.report,
            runs=reading.problem is None,
        )


_from_engine(
    "vllm",
    """Read a `vllm serve` command line into a scenario, and say what became of each flag.

    Also `python -m vllm.entrypoints.openai.api_server`, and `docker run ... vllm/vllm-openai`.
    """,
)
_from_engine(
    "sglang",
    """Read an SGLang command line into a scenario of vLLM with these settings.

    The engine modelled is vLLM's; the report says what that changes.
    """,
)


@scenario_app.command("from-log")
@takes_flags(
    "model gpu trace preset rate concurrency input_tokens output_tokens num_requests slo_ttft "
    "slo_tpot slo_e2e"
)
def from_log(
    file: Annotated[Path, typer.Argument(help="Start-up log of a vLLM or SGLang server.")],
    *,
    flags: Flags,
    override: Override = None,
    ignore: Ignore = None,
    verbose: Verbose = False,
    out: OutFile = None,
    force: Force = False,
) -> None:
    """Read a server's start-up log into a scenario with its flags, version and KV cache.

    `fleetcast memory FILE` then shows what the log said of memory beside what is predicted.
    """
    from scenarios.server_flags.from_log import read_log

    reading = read_log(
        file,
        flags=flags,
        overrides=override or [],
        ignored=ignore or [],
        verbose=verbose,
        out=out,
    )
    _print_or_write(reading.text, out, "simulate", force=force, report=reading.report)


def _print_or_write(
    text: str,
    path: Path | None,
    command: str,
    *,
    force: bool,
    report: str = "",
    runs: bool = True,
) -> None:
    """Print a file's text, or write it to ``path`` and say which command runs it, if it ``runs``.

    ``report`` goes where the text does not. Raises `ScenarioError` for a file that exists already,
    unless ``force`` is given.
    """
    from sim.errors import ScenarioError

    if path is None:
        if report:
            typer.echo(report, err=True)
        typer.echo(text, nl=False)
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ScenarioError(f"{path} exists already; give --force to overwrite it") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written: {error.strerror}") from None
    if report:
        typer.echo(report)
    then = f"run it with: fleetcast {command} {path}" if runs else "it cannot run yet, see above"
    typer.echo(f"wrote {path}; {then}")
