"""Score every recording of a folder: controlled steps, conformance, serving runs, memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from calibrate.fits.engine_log import RequestRow, StepRows
from costmodels.operators.sources import FITTED, Choice
from reports.schemas import VALIDATION
from scenarios.validation.accuracy import AccuracyFigure
from scenarios.validation.conformance import score_conformance
from scenarios.validation.folder import Recording, find_recordings
from scenarios.validation.runs import ScoredRun, score_run
from scenarios.validation.steps import score_points, score_steps
from scenarios.validation.system import System, read_system
from sim import __version__
from sim.errors import FleetcastError, ScenarioError


def score_blocks(system: System) -> AccuracyFigure:
    """Score the number of KV blocks. Raises `ScenarioError` if the plan does not fit the device."""
    return AccuracyFigure(
        run=f"{system.key}:memory",
        regime="memory",
        metric="num_gpu_blocks",
        statistic="value",
        unit="count",
        predicted=system.replica.memory.blocks.num_gpu_blocks,
        measured=system.pool.engine.replica_blocks,
        count=1,
    )


PARTS = ("steps", "conformance", "runs")


@dataclass(kw_only=True)
class Validation:
    """The scores of a folder of measurements."""

    content: dict[str, Any]
    """What accuracy.json holds: plain JSON values."""
    runs: dict[str, ScoredRun] = field(default_factory=dict)
    """Scored runs by ``key:run``, with the latencies that figures are drawn from."""

    def write(self, folder: Path) -> None:
        """Write ``accuracy.json`` and ``latencies.parquet``. Raises `ScenarioError` if it
        cannot."""
        frames = [
            pd.DataFrame({"run": name, "metric": metric, **sample})
            for name, scored in self.runs.items()
            for metric, sample in scored.samples_s.items()
        ]
        empty = pd.DataFrame({name: [] for name in ("run", "metric", "predicted", "measured")})
        try:
            latencies = pd.concat(frames, ignore_index=True) if frames else empty
            latencies.to_parquet(folder / "latencies.parquet", index=False)
            text = json.dumps(self.content, indent=1, allow_nan=False)
            (folder / "accuracy.json").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"cannot write {folder}: {error.strerror}") from error


def validate(
    folder: Path,
    *,
    only: list[str] | None = None,
    skip: Iterable[str] = (),
    profile: str | None = None,
    operators: Choice = FITTED,
    progress: Callable[[str], None] = lambda what: None,
) -> Validation:
    """Predict what was measured, and score it.

    ``skip`` names `PARTS`; ``progress`` is called with what is being scored. ``profile`` is an
    engine profile's name or a calibration file; None: by the recorded version. ``operators`` names
    the source of kernel times, see `costmodels.operators.sources`. A recording, or a part of one,
    that cannot be scored becomes a line in ``warnings``, and the others go on. Raises
    `ScenarioError` if nothing can be scored.
    """
    parts = [part for part in PARTS if part not in set(skip)]
    found = Validation(
        content={
            "schema": VALIDATION,
            "fleetcast_version": __version__,
            "folder": folder.resolve().name,
            "figures": [],
            "steps": [],
            "step_points": [],
            "conformance": [],
            "conditions": {},
            "warnings": [],
        }
    )
    for recording in find_recordings(folder, only):
        progress(recording.key)
        read = partial(read_system, recording, profile, operators)
        _guard(found, recording.key, partial(_score, found, recording, parts, read, progress))
    if not found.content["conditions"]:
        raise ScenarioError("\n".join(["nothing can be scored:", *found.content["warnings"]]))
    found.content["steps"] = score_steps(found.content["step_points"])
    return found


def _score(
    found: Validation,
    recording: Recording,
    parts: list[str],
    read: Callable[[], System],
    progress: Callable[[str], None],
) -> None:
    system, key = read(), recording.key
    found.content["conditions"][key] = {**system.conditions, "runs": {}}
    _warn(found, key, system.warnings)
    _guard(found, f"{key}: memory", partial(_add_blocks, found, system))
    if "steps" in parts:
        _guard(found, f"{key}: controlled steps", partial(_add_points, found, recording, system))
    if "conformance" in parts or "runs" in parts:
        add = partial(_add_runs, found, recording, system, parts, progress)
        _guard(found, f"{key}: serving runs", add)


def _add_blocks(found: Validation, system: System) -> None:
    if system.is_blocks_override:
        return
    found.content["figures"].append(score_blocks(system).as_dict())


def _add_points(found: Validation, recording: Recording, system: System) -> None:
    rows, warnings = score_points(recording, system)
    found.content["step_points"] += rows
    _warn(found, recording.key, warnings)


def _add_runs(
    found: Validation,
    recording: Recording,
    system: System,
    parts: list[str],
    progress: Callable[[str], None],
) -> None:
    step_runs = recording.step_runs
    for run, rows in recording.request_runs.items():
        name, steps = f"{recording.key}:{run}", step_runs.get(run)
        progress(name)
        if "conformance" in parts and steps is not None:
            add = partial(_add_conformance, found, system, run, rows, steps)
            _guard(found, f"{name}: conformance", add)
        if "runs" in parts:
            _guard(found, name, partial(_add_run, found, system, run, rows, steps))


def _add_conformance(
    found: Validation, system: System, run: str, rows: list[RequestRow], steps: StepRows
) -> None:
    found.content["conformance"].append(score_conformance(system, run, rows, steps))


def _add_run(
    found: Validation, system: System, run: str, rows: list[RequestRow], steps: StepRows | None
) -> None:
    scored, name = score_run(system, run, rows, steps), f"{system.key}:{run}"
    found.runs[name] = scored
    found.content["figures"] += [figure.as_dict() for figure in scored.figures]
    found.content["conditions"][system.key]["runs"][run] = scored.conditions
    _warn(found, name, scored.warnings)


def _guard(found: Validation, what: str, score: Callable[[], None]) -> None:
    """Run one part; an error that a user's file can cause ends only that part."""
    try:
        score()
    except FleetcastError as error:
        _warn(found, what, [str(error)])


def _warn(found: Validation, what: str, lines: Iterable[str]) -> None:
    found.content["warnings"] += [f"{what}: {line}" for line in lines]
