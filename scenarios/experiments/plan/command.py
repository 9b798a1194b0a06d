"""The work of ``fleetcast plan``, once its options are read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scenarios.experiments.plan.find import find_plan
from scenarios.experiments.plan.read import read_plan
from scenarios.run.result_folder import make_folder
from sim.errors import ScenarioError


def run_plan(
    path: Path, *, jobs: int | None, out: Path | None, as_json: bool
) -> tuple[Path | None, bool]:
    """Plan, print the answer, write what was asked for; return the page and whether a fleet was
    found.

    Raises `ScenarioError` if the plan cannot be read or ``out`` cannot be written.
    """
    asked = read_plan(path)
    if out is not None:
        make_folder(out)
    found = find_plan(asked, jobs=jobs, note=_note)
    _note("")
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.plan.report import write_plan_page

        _write(found, asked.text, out)
        page = write_plan_page(out)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        from reports.plan.report import plan_report
        from reports.terminal import print_report

        print_report(plan_report(found))
        if page is not None:
            print(f"\nresults in {out}, page in {page}")
    return page, bool(found["ranked"])


def _note(fleet: str) -> None:
    """Show on a terminal which fleet is being simulated."""
    if sys.stderr.isatty():
        text = f"simulating {fleet}" if fleet else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _write(found: dict[str, Any], text: str, folder: Path) -> None:
    try:
        (folder / "plan.yaml").write_text(text, encoding="utf-8")
        if found["winner"] is not None:
            scenario = found["winner"]["scenario"]
            (folder / "fleet.yaml").write_text(scenario, encoding="utf-8")
        dumped = json.dumps(found, indent=1, allow_nan=False)
        (folder / "plan.json").write_text(dumped + "\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from error
