"""``fleetcast whatif``: a scenario and changes to it, on the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import check_format, open_in_browser
from scenarios.commands.options import Jobs, OpenPage, OutputFormat, check_open


def whatif(
    scenario: Annotated[Path, typer.Argument(help="Scenario YAML: the baseline.")],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="One change, section.key=value; repeat for more. Each is run alone, and all of "
            "them together. A comma belongs to the value: a change of several fields goes into "
            "a --variants file.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A name for a --set; the first names the first, and so on."),
    ] = None,
    variants: Annotated[
        Path | None,
        typer.Option(
            help="YAML of more variants, each run alone: a list of {name: ..., set: {section.key: "
            "value, ...}}, or a mapping of names to such settings."
        ),
    ] = None,
    replications: Annotated[
        int | None,
        typer.Option(
            help="Runs of each variant, with seeds from the scenario's on. Default: 3 to 10 by the "
            "size of the workload, 1 for a long one or a recorded trace."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="The figure that decides what is best, e.g. ttft.p99, goodput, "
            "saturation_per_gpu. Default: by the scenario."
        ),
    ] = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write: whatif.json, scenarios, an HTML page.")
    ] = None,
    open_page: OpenPage = False,
    output_format: OutputFormat = "text",
) -> None:
    """Compare changes to a scenario: each alone and all together, on the same requests.

    Figures are given with their change against the scenario as it is, and how sure that is. A
    change that cannot be built is shown as refused.

    Exit codes: 0 done; 2 the input cannot be used, or no change can be run; 130 interrupted.
    """
    from scenarios.experiments.whatif.command import run_whatif

    check_format(output_format)
    check_open(open_page, out)
    page = run_whatif(
        scenario,
        sets=change or [],
        names=name or [],
        variants=variants,
        replications=replications,
        by=by,
        jobs=jobs,
        out=out,
        as_json=output_format == "json",
    )
    if open_page and page is not None:
        open_in_browser(page)
