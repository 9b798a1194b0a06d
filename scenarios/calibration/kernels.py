"""Measure kernels on the device at hand, and make operator tables of the timings."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrate.tables.kernel_lines import KernelLines, clock_shares, read_lines
from calibrate.tables.kernel_tables import build_tables, target_of, write_tables
from costmodels.hardware.gpus import GPU_FILE
from scenarios.calibration.contents import calibration_facts
from sim.errors import ScenarioError


def measure(out: Path, *, device: str, quick: bool, families: str | None) -> Path:
    """Measure into the folder ``out``, without repeating what it has; return the file of timings.

    Raises `ScenarioError` if torch is missing or the measurement fails.
    """
    if find_spec("torch") is None:
        raise ScenarioError("measuring needs torch: pip install 'fleetcast[calibrate]'")
    out.mkdir(parents=True, exist_ok=True)
    lines = out / "lines.jsonl"
    command = [sys.executable, "-m", "calibrate.measure", "--out", str(lines), "--device", device]
    command += ["--quick"] if quick else []
    command += ["--families", families] if families else []
    done = subprocess.run(command, check=False)
    if done.returncode:
        kept = f"; what was measured is in {lines}" if lines.exists() else ""
        raise ScenarioError(f"measuring ended with exit code {done.returncode}{kept}")
    return lines


def import_facts(paths: Sequence[Path], *, out: Path, gpu: str | None) -> dict[str, Any]:
    """Write the tables of the lines to ``out``; return what they hold."""
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
    """Return the cases that were not timed, by family, kernel and reason."""
    found = Counter(
        (str(row.get("family")), str(row.get("kernel")), str(row.get("reason"))[:200])
        for row in lines.refused
    )
    return [
        {"family": family, "kernel": kernel, "reason": reason, "cases": count}
        for (family, kernel, reason), count in sorted(found.items())
    ]
