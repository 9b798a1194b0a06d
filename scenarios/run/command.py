"""The work of ``fleetcast simulate``, once its options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.files.dump import save_scenario
from scenarios.schema import Scenario

if TYPE_CHECKING:
    from scenarios.run.result import RunResult


def run_simulate(
    scenario: Scenario, *, save: Path | None, out: Path | None, as_json: bool
) -> float | None:
    """Simulate, print the summary and write what was asked for; return the SLO attainment."""
    from scenarios.run.simulate import simulate

    if save is not None:
        save_scenario(scenario, save)
    if out is not None:
        from scenarios.run.result_folder import make_folder

        make_folder(out)
    result = _with_progress(lambda progress: simulate(scenario, progress=progress))
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.run.report import write_run_page

        result.write(out)
        page = write_run_page(out)
    if as_json:
        print(json.dumps(result.summary, indent=1, allow_nan=False))
    else:
        from reports.run.report import run_report
        from reports.terminal import print_report

        print_report(run_report(result.summary))
        if out is not None:
            print(f"results in {out}, report in {page}")
    attainment: float | None = result.summary["slo"]["attainment"]
    return attainment


def _with_progress(run: Callable[[Callable[[int, int], None] | None], RunResult]) -> RunResult:
    """Show a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        return run(None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        return run(lambda sent, total: bar.update(task, completed=sent, total=total))
