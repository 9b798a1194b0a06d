"""`fleetcast calibrate import`: measured lines in, operator tables out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.tables.kernel_lines import KernelLines, clock_shares, read_lines
from calibrate.tables.kernel_tables import build_tables, target_of, write_tables
from costmodels.hardware.gpus import GPU_FILE
from scenarios.calibration.facts import calibration_facts


def run_import(paths: Sequence[Path], *, out: Path, gpu: str | None, as_json: bool) -> None:
    """Import and print what was made. Raises ScenarioError."""
    facts = import_facts(paths, out=out, gpu=gpu)
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return
    from reports.calibration.text import print_import

    print_import(facts)


def import_facts(paths: Sequence[Path], *, out: Path, gpu: str | None) -> dict[str, Any]:
    """Write the tables of the lines to ``out``; what they hold."""
    lines = read_lines(paths)
    tables = build_tables(lines, target_of(lines, gpu))
    written = write_tables(tables, out)
    return {
        **calibration_facts(tables),
        "out": str(out),
        "files": [path.name for path in written],
        "timings": len(lines.timings),
        "refused": _refused(lines),
        "clock_shares": clock_shares(lines),
        "gpu_file": str(out / GPU_FILE) if (out / GPU_FILE).is_file() else None,
    }


def _refused(lines: KernelLines) -> list[dict[str, Any]]:
    """Cases that were not timed, by family, kernel and reason."""
    found = Counter(
        (str(row.get("family")), str(row.get("kernel")), str(row.get("reason"))[:200])
        for row in lines.refused
    )
    return [
        {"family": family, "kernel": kernel, "reason": reason, "cases": count}
        for (family, kernel, reason), count in sorted(found.items())
    ]
