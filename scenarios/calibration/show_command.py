"""`fleetcast calibrate show` and `diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scenarios.calibration.named import load_named
from scenarios.calibration.surfaces import surface_facts


def run_show(name: str, *, gpu: str | None, out: Path | None, as_json: bool) -> None:
    """Show a calibration. Raises ScenarioError."""
    facts = surface_facts(load_named(name, gpu), name)
    if out is not None:
        from reports.calibration.page import write_calibration_page

        write_calibration_page(facts, out)
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return
    from reports.calibration.text import print_calibration

    print_calibration(facts)
    if out is not None:
        print(f"page in {out}")


def run_diff(
    left: str, right: str, *, gpu: str | None, out: Path | None, as_json: bool
) -> dict[str, Any]:
    """Compare two calibrations of one GPU. Raises ScenarioError."""
    from scenarios.calibration.diff import diff_facts

    facts = diff_facts(left, right, gpu)
    if out is not None:
        from reports.calibration.diff_page import write_diff_page

        write_diff_page(facts, out)
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return facts
    from reports.calibration.diff_text import print_diff

    print_diff(facts)
    if out is not None:
        print(f"page in {out}")
    return facts
