"""``fleetcast whatif``: a scenario and changes to it, on the same requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.commands.app import open_in_browser, print_json
from scenarios.commands.options import Cluster, Jobs, OpenPage, OutputFormat, check_open

if TYPE_CHECKING:
    from scenarios.experiments.whatif.comparison import WhatIf


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
    cluster: Cluster = None,
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
    from scenarios.experiments.whatif.changes import changes_from_file, changes_from_sets
    from scenarios.experiments.whatif.comparison import what_if
    from scenarios.files.scenario_file import read_scenario_file
    from scenarios.run.progress import shown_progress
    from scenarios.run.result_folder import make_folder

    check_open(open_page, out)
    values, places = read_scenario_file(scenario)
    changes = changes_from_sets(change or [], name or [])
    if variants is not None:
        changes += changes_from_file(variants)
    if out is not None:
        make_folder(out)  # before a long run: a place that cannot be written
    with shown_progress() as progress:
        answer = what_if(
            values,
            changes,
            places=places,
            replications=replications,
            by=by,
            jobs=jobs,
            cluster=cluster,
            progress=progress,
        )
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.whatif.report import write_whatif_page

        write_whatif(answer, out)
        page = write_whatif_page(out)
    if output_format == "json":
        print_json(answer.content)
    else:
        from reports.terminal import print_report
        from reports.whatif.report import whatif_report

        print_report(whatif_report(answer.content))
        if page is not None:
            print(f"results in {out}, page in {page}")
    if open_page and page is not None:
        open_in_browser(page)


def write_whatif(answer: WhatIf, folder: Path) -> None:
    """Write whatif.json and each variant's scenario as YAML.

    Raises `ScenarioError` if the folder cannot be written.
    """
    from scenarios.files.dump import dump_scenario
    from scenarios.run.result_folder import json_text, make_folder, write_files

    content = answer.content
    entries = {v["name"]: v for v in (content["baseline"], *content["variants"])}
    make_folder(folder)
    files = {}
    for index, variant in enumerate(answer.variants):
        if variant.scenario is None:
            continue
        file = f"scenarios/{index:02d}-{_slug(variant.name)}.yaml"
        files[file] = dump_scenario(variant.scenario, folder)
        entries[variant.name]["scenario_file"] = file
    write_files(folder, files | {"whatif.json": _with_short_lists(json_text(content))})


def _with_short_lists(text: str) -> str:
    """Return JSON with each list of numbers on one line, because distributions are long."""
    return re.sub(r"\[[\s\d.eE,+-]+\]", lambda found: " ".join(found[0].split()), text)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "variant"
