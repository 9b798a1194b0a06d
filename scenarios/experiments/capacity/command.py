"""The work of ``fleetcast capacity``, once its options are read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scenarios.experiments.capacity.find import find_capacity
from scenarios.experiments.capacity.question import Question
from scenarios.files.dump import dump_scenario
from scenarios.run.result_folder import make_folder
from scenarios.schema import Scenario
from sim.errors import ScenarioError


def run_capacity(
    scenario: Scenario,
    question: Question,
    *,
    jobs: int | None,
    out: Path | None,
    as_json: bool,
) -> Path | None:
    """Search, print the answer and write what was asked for; return the page's path, if there is
    one.

    Raises `ScenarioError` if the question does not fit the scenario or ``out`` cannot be written.
    """
    if out is not None:
        make_folder(out)
    found = find_capacity(scenario, question, jobs=jobs, note=_note)
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.capacity.report import write_capacity_page

        _write(found, scenario, out)
        page = write_capacity_page(out)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        from reports.capacity.report import capacity_report
        from reports.terminal import print_report

        print_report(capacity_report(found))
        if page is not None:
            print(f"\nresults in {out}, page in {page}")
    return page


def _note(what: str, done: int, total: int) -> None:
    """Show on a terminal which runs are in progress."""
    if sys.stderr.isatty():
        end = "\r\x1b[K" if done == total else ""
        print(f"\r\x1b[K{what}: {done} of {total} runs{end}", end="", file=sys.stderr, flush=True)


def _write(found: dict[str, Any], scenario: Scenario, folder: Path) -> None:
    try:
        (folder / "scenario.yaml").write_text(dump_scenario(scenario), encoding="utf-8")
        text = json.dumps(found, indent=1, allow_nan=False)
        (folder / "capacity.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from error
