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


@calibrate_app.command("run")
def calibrate_run(
    out: Annotated[Path, typer.Option(help="Folder to write the timings and tables to.")],
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    quick: Annotated[bool, typer.Option("--quick", help="Few shapes of each kernel.")] = False,
    families: Annotated[
        str | None, typer.Option(help="Families to measure, separated by commas. Default: all.")
    ] = None,
) -> None:
    """Measure kernels on the device at hand, and make operator tables of them."""
    from scenarios.calibration.run_command import run_measure

    if device not in ("cuda", "cpu"):
        raise typer.BadParameter(f"{device!r} is neither cuda nor cpu", param_hint="--device")
    run_measure(out, device=device, quick=quick, families=families)


_CalibrationGpu = Annotated[str | None, typer.Option(help="Which GPU of `ours` and `aic`.")]
_Page = Annotated[Path | None, typer.Option(help="HTML page to write.")]


@calibrate_app.command("show")
def calibrate_show(
    calibration: Annotated[str, typer.Argument(help="A folder or file of tables, ours, or aic.")],
    gpu: _CalibrationGpu = None,
    out: _Page = None,
    output_format: OutputFormat = "text",
) -> None:
    """Show what a calibration holds: efficiency over shapes, range, held-out errors."""
    from scenarios.calibration.show_command import run_show

    check_format(output_format)
    run_show(calibration, gpu=gpu, out=out, as_json=output_format == "json")


@calibrate_app.command("diff")
def calibrate_diff(
    left: Annotated[str, typer.Argument(help="A folder or file of tables, ours, or aic.")],
    right: Annotated[str, typer.Argument(help="What to compare it with.")],
    gpu: _CalibrationGpu = None,
    out: _Page = None,
    output_format: OutputFormat = "text",
) -> None:
    """Compare two calibrations of one GPU where both have times: left over right."""
    from scenarios.calibration.show_command import run_diff

    check_format(output_format)
    run_diff(left, right, gpu=gpu, out=out, as_json=output_format == "json")
