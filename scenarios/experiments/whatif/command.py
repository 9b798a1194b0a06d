"""The work of ``fleetcast whatif``: run the comparison, print it, write what was asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scenarios.experiments.whatif.changes import changes_from_file, changes_from_sets
from scenarios.experiments.whatif.comparison import WhatIf, what_if
from scenarios.files.dump import dump_scenario
from scenarios.files.scenario_file import read_scenario_file
from scenarios.run.progress import with_progress
from scenarios.run.result_folder import make_folder
from sim.errors import ScenarioError


def run_whatif(
    scenario: Path,
    *,
    sets: list[str],
    names: list[str],
    variants: Path | None,
    replications: int | None,
    by: str | None,
    jobs: int | None,
    out: Path | None,
    as_json: bool,
) -> Path | None:
    """Compare, print, and write the folder ``out``; return the page in it.

    Raises `ScenarioError`.
    """
    values, places = read_scenario_file(scenario)
    changes = changes_from_sets(sets, names)
    if variants is not None:
        changes += changes_from_file(variants)
    if out is not None:
        make_folder(out)  # before a long run: a place that cannot be written
    answer = with_progress(
        lambda progress: what_if(
            values,
            changes,
            places=places,
            replications=replications,
            by=by,
            jobs=jobs,
            progress=progress,
        )
    )
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.whatif.report import write_whatif_page

        write_whatif(answer, out)
        page = write_whatif_page(out)
    if as_json:
        print(json.dumps(answer.content, indent=1, allow_nan=False))
    else:
        from reports.terminal import print_report
        from reports.whatif.report import whatif_report

        print_report(whatif_report(answer.content))
        if page is not None:
            print(f"results in {out}, page in {page}")
    return page


def write_whatif(answer: WhatIf, folder: Path) -> Path:
    """Write whatif.json and each variant's scenario as YAML; return the folder.

    Raises `ScenarioError` if the folder cannot be written.
    """
    content = answer.content
    entries = {v["name"]: v for v in (content["baseline"], *content["variants"])}
    try:
        make_folder(folder)
        (folder / "scenarios").mkdir(exist_ok=True)
        for index, variant in enumerate(answer.variants):
            if variant.scenario is None:
                continue
            name = f"scenarios/{index:02d}-{_slug(variant.name)}.yaml"
            (folder / name).write_text(dump_scenario(variant.scenario), encoding="utf-8")
            entries[variant.name]["scenario_file"] = name
        text = _json_text(content)
        # last, so that it marks a complete folder
        (folder / "whatif.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from error
    return folder


def _json_text(content: dict[str, Any]) -> str:
    """Return indented JSON with each list of numbers on one line, because distributions are
    long."""
    text = json.dumps(content, indent=1, allow_nan=False)
    return re.sub(r"\[[\s\d.eE,+-]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "variant"
