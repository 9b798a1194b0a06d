"""``fleetcast validate``: predict what was measured on a real engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import print_json
from scenarios.commands.options import OutputFormat


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
        str,
        typer.Option(
            help="Kernel times: fitted, datasheet, ours, aic, a folder or .parquet files; or by "
            "family, as {default: fitted, gemm: ours}."
        ),
    ] = "fitted",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write: accuracy.json and an HTML page.")
    ] = None,
    output_format: OutputFormat = "text",
) -> None:
    """Predict what was measured on a real engine, and print the errors."""
    from scenarios.calibration.contents import parse_operators
    from scenarios.run.result_folder import make_folder
    from scenarios.validation.validate import PARTS, validate
    from sim.errors import ScenarioError

    unknown = [part for part in skip or [] if part not in PARTS]
    if unknown:
        raise ScenarioError(f"--skip {unknown[0]}: there are {', '.join(PARTS)}")
    if out is not None:
        make_folder(out)
    found = validate(
        folder,
        only=only or [],
        skip=skip or [],
        profile=profile,
        operators=parse_operators(operators),
        progress=_note,
    )
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.validation.report import write_validation_page

        found.write(out)
        page = write_validation_page(out)
    if output_format == "json":
        print_json(found.content)
    else:
        from reports.terminal import print_report
        from reports.validation.report import validation_report

        print_report(validation_report(found.content))
        if out is not None:
            print(f"\nresults in {out}, page in {page}")


def _note(what: str) -> None:
    """Show on a terminal what is being scored."""
    if sys.stderr.isatty():
        print(f"\r\x1b[Kscoring {what}\r", end="", file=sys.stderr, flush=True)
