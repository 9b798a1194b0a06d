"""``fleetcast calibrate``: logs and timings in, calibration files and operator tables out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.commands.app import print_json
from scenarios.commands.options import OutputFormat

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
    from costmodels.engines.calibration import save_calibration
    from scenarios.calibration.engine import fit_recordings

    fitted, num_steps = fit_recordings(
        paths, only=only or [], half=half, serving=serving, machine=machine, base=base
    )
    digest = save_calibration(fitted, out)
    typer.echo(
        f"fitted {fitted.profile.name} on {fitted.gpu} to {num_steps:,} steps; median error of a "
        "step's GPU time:"
    )
    for name, error in fitted.errors.items():
        typer.echo(f"{name:16} {error:6.1%}")
    typer.echo(f"written to {out} ({digest[:12]}); use it with --set engine.profile={out}")


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
    from scenarios.calibration.kernels import import_facts

    _print_import(import_facts(lines, out=out, gpu=gpu), output_format)


def _print_import(facts: dict[str, Any], output_format: str) -> None:
    if output_format == "json":
        print_json(facts)
        return
    from reports.calibration.report import import_report
    from reports.terminal import print_report

    print_report(import_report(facts))


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
    from scenarios.calibration.kernels import import_facts, measure

    if device not in ("cuda", "cpu"):
        raise typer.BadParameter(f"{device!r} is neither cuda nor cpu", param_hint="--device")
    lines = measure(out, device=device, quick=quick, families=families)
    _print_import(import_facts([lines], out=out, gpu=None), "text")


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
    from scenarios.calibration.contents import load_named, surface_facts

    facts = surface_facts(load_named(calibration, gpu), calibration)
    if out is not None:
        from reports.calibration.report import write_calibration_page

        write_calibration_page(facts, out)
    if output_format == "json":
        print_json(facts)
        return
    from reports.calibration.report import calibration_report
    from reports.terminal import print_report

    print_report(calibration_report(facts))
    if out is not None:
        print(f"page in {out}")


@calibrate_app.command("diff")
def calibrate_diff(
    left: Annotated[str, typer.Argument(help="A folder or file of tables, ours, or aic.")],
    right: Annotated[str, typer.Argument(help="What to compare it with.")],
    gpu: _CalibrationGpu = None,
    out: _Page = None,
    output_format: OutputFormat = "text",
) -> None:
    """Compare two calibrations of one GPU where both have times: left over right."""
    from reports.calibration.diff import diff_report, write_diff_page
    from reports.terminal import print_report
    from scenarios.calibration.diff import diff_facts

    facts = diff_facts(left, right, gpu)
    if out is not None:
        write_diff_page(facts, out)
    if output_format == "json":
        print_json(facts)
        return
    print_report(diff_report(facts))
    if out is not None:
        print(f"page in {out}")
