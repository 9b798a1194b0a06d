"""Fit a calibration of an engine to the step logs of recordings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from calibrate.fits.engine_fit import fit_engine
from calibrate.fits.engine_rows import EngineRows, is_held_out
from costmodels.engines.calibration import Calibration
from costmodels.engines.profile import load_profile
from costmodels.hardware.efficiency import load_efficiency
from scenarios.validation.folder import FILE_ENDS, Recording, find_recordings
from scenarios.validation.logs import controlled_logs, serving_logs
from scenarios.validation.points import point_of_run
from scenarios.validation.system import System, read_system
from sim.errors import ScenarioError
from sim.paths import file_sha256


def fit_recordings(
    paths: Sequence[Path],
    *,
    only: list[str],
    half: bool,
    serving: bool,
    machine: str,
    base: str,
) -> tuple[Calibration, int]:
    """Return the calibration that fits the step logs, and the number of steps that it is fitted to.

    ``half`` leaves out the held-out controlled steps, ``serving`` adds serving runs, and ``base``
    names the profile to start from. Raises `ScenarioError` or `TraceError` if the logs cannot be
    used.
    """
    recordings = [r for path in paths for r in _recordings(path, only)]
    systems = [read_system(recording) for recording in recordings]
    gpus = {system.replica.gpu.name: system.replica.gpu for system in systems}
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
    calibration = Calibration(
        profile=fit.profile,
        efficiency=fit.efficiency,
        gpu=gpu.name,
        machine=machine,
        date=datetime.now(UTC).date().isoformat(),
        inputs=dict(pair for recording in recordings for pair in _hashes(recording)),
        errors=fit.errors,
    )
    return calibration, sum(int(log.is_fitted.sum()) for log in logs)


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
    return [(p.name, file_sha256(p)) for p in paths if p.is_file()]
