"""``fleetcast scenario``: starting files, new or read from a server's command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.options import Flags, Override, takes_flags

Command = Annotated[
    list[str],
    typer.Argument(help="The command in quotes, or after `--`; `-` reads it from standard input."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Leave out a flag that is not modelled or not known; may repeat."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="List the flags without effect on timing, too.")
]
Out = Annotated[
    Path | None, typer.Option(help="File to write. Default: standard output, the report apart.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]

scenario_app = typer.Typer(
    help="Write a scenario: a new one, or that of a server's command line.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@scenario_app.command("init")
@takes_flags(
    "model gpu tp replicas trace preset rate concurrency input_tokens output_tokens num_requests "
    "slo_ttft slo_tpot slo_e2e seed"
)
def init(
    file: Annotated[
        Path | None, typer.Argument(help="File to write. Default: standard output.")
    ] = None,
    *,
    flags: Flags,
    override: Override = None,
    force: Force = False,
) -> None:
    """Write a scenario with every field there is: the usual ones set, the others commented out."""
    from scenarios.commands.starter import run_init

    typer.echo(run_init(file, flags, override or [], force=force), nl=False)


@scenario_app.command("init-sweep")
def init_sweep(
    file: Annotated[
        Path | None, typer.Argument(help="File to write. Default: standard output.")
    ] = None,
    scenario: Annotated[
        str, typer.Option(help="The scenario file of all points, from the sweep's folder.")
    ] = "scenario.yaml",
    force: Force = False,
) -> None:
    """Write a sweep over a scenario with every field there is: axes set, the others explained."""
    from scenarios.commands.starter import run_init_sweep

    typer.echo(run_init_sweep(file, scenario, force=force), nl=False)


@scenario_app.command("from-vllm")
@takes_flags(
    "model gpu trace preset rate concurrency input_tokens output_tokens num_requests slo_ttft "
    "slo_tpot slo_e2e"
)
def from_vllm(
    command: Command,
    *,
    flags: Flags,
    override: Override = None,
    ignore: Ignore = None,
    verbose: Verbose = False,
    out: Out = None,
    force: Force = False,
) -> None:
    """Read a `vllm serve` command line into a scenario, and say what became of each flag.

    Also `python -m vllm.entrypoints.openai.api_server`, and `docker run ... vllm/vllm-openai`.
    """
    _from_command("vllm", command, flags, override, ignore, verbose, out, force)


@scenario_app.command("from-sglang")
@takes_flags(
    "model gpu trace preset rate concurrency input_tokens output_tokens num_requests slo_ttft "
    "slo_tpot slo_e2e"
)
def from_sglang(
    command: Command,
    *,
    flags: Flags,
    override: Override = None,
    ignore: Ignore = None,
    verbose: Verbose = False,
    out: Out = None,
    force: Force = False,
) -> None:
    """Read an SGLang command line into a scenario of vLLM with these settings.

    The engine modelled is vLLM's; the report says what that changes.
    """
    _from_command("sglang", command, flags, override, ignore, verbose, out, force)


def _from_command(
    engine: str,
    command: list[str],
    flags: Flags,
    override: list[str] | None,
    ignore: list[str] | None,
    verbose: bool,
    out: Path | None,
    force: bool,
) -> None:
    import sys

    from scenarios.commands.starter import write_new
    from scenarios.server_flags.command import read_command

    reading = read_command(
        engine,
        [sys.stdin.read()] if command == ["-"] else command,
        flags=flags,
        overrides=override or [],
        ignored=ignore or [],
        verbose=verbose,
        out=out,
    )
    if out is None:
        typer.echo(reading.report, err=True)
        typer.echo(reading.text, nl=False)
        return
    write_new(out, reading.text, force=force)
    typer.echo(reading.report, nl=False)
    typer.echo(f"\nwrote {out}; run it with: fleetcast simulate {out}")
