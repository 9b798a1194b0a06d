"""The work of `fleetcast calibrate`: logs and timings in, calibration files and tables out."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrate.fits.engine_fit import fit_engine
from calibrate.fits.engine_rows import EngineRows
from calibrate.fits.holdout import is_held_out
from calibrate.tables.kernel_lines import KernelLines, clock_shares, read_lines
from calibrate.tables.kernel_tables import build_tables, target_of, write_tables
from costmodels.engines.calibration import Calibration, save_calibration
from costmodels.engines.profile import load_profile
from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import GPU_FILE
from scenarios.calibration.contents import calibration_facts, load_named, surface_facts
from scenarios.validation.folder import FILE_ENDS, Recording, find_recordings
from scenarios.validation.logs import controlled_logs, serving_logs
from scenarios.validation.points import point_of_run
from scenarios.validation.system import System, read_system
from sim.errors import ScenarioError


def run_calibrate_engine(
    paths: Sequence[Path],
    *,
    out: Path,
    only: list[str],
    half: bool,
    serving: bool,
    machine: str,
    base: str,
) -> str:
    """Fit and write a calibration; return a summary of the fit for the user.

    Raises `ScenarioError` or `TraceError` if the logs cannot be used.
    """
    recordings = [r for path in paths for r in _recordings(path, only)]
    systems = [read_system(recording) for recording in recordings]
    gpus = {system.gpu.name: system.gpu for system in systems}
    if len(gpus) > 1:
        raise ScenarioError(f"the logs are of several GPUs, {', '.join(gpus)}: fit them apart")
    gpu = next(iter(gpus.values()))
    logs = [
        log
        for recording, system in zip(recordings, systems, strict=True)
        for log in _logs(recording, system, half=half, serving=serving)
    ]
    if not logs:
        raise ScenarioError("no step logs (KEY_steps.csv, KEY_e1_steps.csv) in these folders")
    fit = fit_engine(logs, load_profile(base), load_efficiency(gpu))
    digest = save_calibration(
        Calibration(
            profile=fit.profile,
            efficiency=fit.efficiency,
            gpu=gpu.name,
            machine=machine,
            date=datetime.now(UTC).date().isoformat(),
            inputs=dict(pair for recording in recordings for pair in _hashes(recording)),
            errors=fit.errors,
        ),
        out,
    )
    lines = [f"{name:16} {error:6.1%}" for name, error in fit.errors.items()]
    steps = sum(int(log.is_fitted.sum()) for log in logs)
    return "\n".join(
        [
            f"fitted {fit.profile.name} on {gpu.name} to {steps:,} steps; median error of a "
            "step's GPU time:",
            *lines,
            f"written to {out} ({digest[:12]}); use it with --set engine.profile={out}",
        ]
    )


def _recordings(path: Path, only: list[str]) -> list[Recording]:
    """Return the recordings of a folder, or the one that a file belongs to. Raises
    `ScenarioError`."""
    if not path.is_file():
        return find_recordings(path, only)
    key = next((path.name.removesuffix(end) for end in FILE_ENDS if path.name.endswith(end)), None)
    if key is None:
        raise ScenarioError(f"{path}: not one of KEY{', KEY'.join(FILE_ENDS)}")
    return find_recordings(path.parent, [key])


def _logs(recording: Recording, system: System, *, half: bool, serving: bool) -> list[EngineRows]:
    logs = serving_logs(recording, system) if serving else []
    held_out = []
    for run in recording.controlled_runs if half else ():
        point = point_of_run(run)
        if point is not None and is_held_out(recording.key, point):
            held_out.append(run)
    return logs + controlled_logs(recording, system, held_out)


def _hashes(recording: Recording) -> list[tuple[str, str]]:
    paths = sorted(recording.info_path.parent.glob(f"{recording.key}_*"))
    return [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths if p.is_file()]


def run_import(paths: Sequence[Path], *, out: Path, gpu: str | None, as_json: bool) -> None:
    """Import timings and print the tables that were made. Raises `ScenarioError`."""
    facts = import_facts(paths, out=out, gpu=gpu)
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return
    from reports.calibration.report import import_report
    from reports.terminal import print_report

    print_report(import_report(facts))


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


_LINES = "lines.jsonl"


def run_measure(out: Path, *, device: str, quick: bool, families: str | None) -> None:
    """Measure into ``out`` and import from there, without repeating earlier measurements.

    Raises `ScenarioError` if torch is missing or the measurement fails.
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


def run_show(name: str, *, gpu: str | None, out: Path | None, as_json: bool) -> None:
    """Show what a calibration holds. Raises `ScenarioError`."""
    facts = surface_facts(load_named(name, gpu), name)
    if out is not None:
        from reports.calibration.report import write_calibration_page

        write_calibration_page(facts, out)
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return
    from reports.calibration.report import calibration_report
    from reports.terminal import print_report

    print_report(calibration_report(facts))
    if out is not None:
        print(f"page in {out}")


def run_diff(
    left: str, right: str, *, gpu: str | None, out: Path | None, as_json: bool
) -> dict[str, Any]:
    """Compare two calibrations of one GPU, and print the result. Raises `ScenarioError`."""
    from scenarios.calibration.diff import diff_facts

    facts = diff_facts(left, right, gpu)
    if out is not None:
        from reports.calibration.diff import write_diff_page

        write_diff_page(facts, out)
    if as_json:
        print(json.dumps(facts, indent=1, allow_nan=False))
        return facts
    from reports.calibration.diff import diff_report
    from reports.terminal import print_report

    print_report(diff_report(facts))
    if out is not None:
        print(f"page in {out}")
    return facts
