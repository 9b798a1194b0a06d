"""``fleetcast compare``: a simulation beside the results of a load test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import EXIT_BEYOND_TOLERANCE, print_json
from scenarios.commands.options import OutputFormat


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
            help="vllm-bench, sglang-bench, printed, guidellm, aiperf, inference-perf, locust, "
            "prometheus, engine-log, csv ... Default: recognised."
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
    from calibrate.results.detect import read_measured
    from scenarios.validation.compare import (
        beyond_tolerance,
        choose_run,
        compare,
        read_predicted,
        read_tolerances,
    )

    limits = read_tolerances(tolerance or [])
    predicted = read_predicted(run)
    chosen = choose_run(read_measured(measured, format=measured_format), run_name)
    comparison = compare(predicted, chosen)
    beyond = beyond_tolerance(comparison.figures, limits)
    if output_format == "json":
        print_json(comparison.content())
    else:
        from reports.terminal import print_report
        from reports.validation.comparison import comparison_report

        print_report(comparison_report(comparison.content()))
    for line in beyond:
        typer.echo(line, err=True)
    if beyond:
        raise typer.Exit(EXIT_BEYOND_TOLERANCE)
