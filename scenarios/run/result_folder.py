"""Writes the result folder: the only thing that passes from a run to its report."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.files.dump import dump_scenario
from sim.errors import ScenarioError

if TYPE_CHECKING:
    from scenarios.run.simulate import RunResult


def make_folder(folder: Path) -> None:
    """Make the folder, so that a place that cannot be written is known before a long run.

    Raises ScenarioError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from None


def write_result(result: RunResult, folder: Path) -> Path:
    """Write summary.json, the tables as parquet, and the resolved scenario.

    Raises ScenarioError if the folder cannot be written.
    """
    # pandas: only where a folder is written
    from scenarios.run.frames import preemptions_frame, step_times_frame

    try:
        make_folder(folder)
        (folder / "scenario.yaml").write_text(dump_scenario(result.scenario), encoding="utf-8")
        result.requests.to_parquet(folder / "requests.parquet", index=False)
        result.steps.to_parquet(folder / "steps.parquet", index=False)
        preemptions_frame(result.log).to_parquet(folder / "preemptions.parquet", index=False)
        step_times_frame(result.log).to_parquet(
            folder / "step_times.parquet",
            index=False,
            use_dictionary=False,
            column_encoding="DELTA_BINARY_PACKED",
        )
        text = json.dumps(result.summary, indent=1, allow_nan=False)
        (folder / "summary.json").write_text(text + "\n", encoding="utf-8")  # last: it is complete
    except OSError as error:
        raise ScenarioError(f"cannot write the result folder {folder}: {error.strerror}") from error
    return folder
