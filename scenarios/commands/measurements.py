"""Commands about measurements: ``fleetcast validate``, ``compare`` and ``calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_BEYOND_TOLERANCE, check_format
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
    from scenarios.validation.command import run_validate

    check_format(output_format)
    as_json = output_format == "json"
    run_validate(
        folder,
        only=only or [],
        skip=skip or [],
        profile=profile,
        operators=parse_operators(operators),
        out=out,
        as_json=as_json,
    )


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
    output_format: OutputFormat = "text",
) -> None:
    """Compare a simulation with the results of a real load test, and print the errors.

    Exit codes: 0 done; 2 the input cannot be used; 4 an error is beyond --tolerance.
    """
    from scenarios.validation.compare_command import run_compare

    check_format(output_format)
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
    from scenarios.calibration.commands import run_calibrate_engine

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
    from scenarios.calibration.commands import run_import

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
    from scenarios.calibration.commands import run_measure

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
    from scenarios.calibration.commands import run_show

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
    from scenarios.calibration.commands import run_diff

    check_format(output_format)
    run_diff(left, right, gpu=gpu, out=out, as_json=output_format == "json")
