"""``fleetcast calibrate``: the commands about kernel timings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.app import check_format
from scenarios.cli.measured import calibrate_app
from scenarios.cli.options import OutputFormat


@calibrate_app.command("import")
def calibrate_import(
    lines: Annotated[list[Path], typer.Argument(help="Files of python -m calibrate.measure.")],
    out: Annotated[Path, typer.Option(help="Folder to write the tables to.")],
    gpu: Annotated[
        str | None,
        typer.Option(help="What they are of, by name or gpu.yaml. Default: by the device's name."),
    ] = None,
    output_format: OutputFormat = "text",
) -> None:
    """Make operator tables of measured kernel timings."""
    from scenarios.calibration.import_command import run_import

    check_format(output_format)
    run_import(lines, out=out, gpu=gpu, as_json=output_format == "json")
