"""`fleetcast calibrate run`: measure the device at hand, then import what was measured."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from scenarios.calibration.import_command import run_import
from sim.errors import ScenarioError

_LINES = "lines.jsonl"


def run_measure(out: Path, *, device: str, quick: bool, families: str | None) -> None:
    """Measure into ``out`` and import from there; what was measured before is not again.

    Raises ScenarioError where torch is missing or the measurement fails.
    """
    if find_spec("torch") is None:
        raise ScenarioError("measuring needs torch: pip install 'fleetcast[calibrate]'")
    out.mkdir(parents=True, exist_ok=True)
    lines = out / _LINES
    command = [sys.executable, "-m", "calibrate.measure", "--out", str(lines), "--device", device]
    command += ["--quick"] if quick else []
    command += ["--families", families] if families else []
    done = subprocess.run(command, check=False)
    if done.returncode:
        kept = f"; what was measured is in {lines}" if lines.exists() else ""
        raise ScenarioError(f"measuring ended with exit code {done.returncode}{kept}")
    run_import([lines], out=out, gpu=None, as_json=False)
