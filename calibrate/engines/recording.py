"""Write what an engine did, in the files that `fleetcast validate` and the fits read."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from calibrate.engines.driver import STEP_COLUMNS, Step
from calibrate.engines.serving import Served

_SECONDS = ("t_sched", "t_sched_end", "t_out", "t_upd_end")


class RecordingFiles:
    """``KEY_info.json``, ``KEY_e1_steps.csv.gz``, ``KEY_steps.csv.gz``, ``KEY_requests.jsonl.gz``.

    Everything is written as soon as it is there, so that a killed run loses one point at most.
    """

    def __init__(self, folder: Path, key: str, info: dict[str, Any]) -> None:
        """Start the files; those of an earlier run of the same key are replaced."""
        self._folder, self._key = folder, key
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{key}_*"):
            if old.name.removeprefix(f"{key}_").split(".")[0] in (
                "info",
                "e1_steps",
                "steps",
                "requests",
            ):
                old.unlink()
        self.info = {**info, "e1": [], "runs": [], "host": []}
        self.save_info()

    def save_info(self) -> None:
        """Write the info file in one piece."""
        path = self._folder / f"{self._key}_info.json"
        part = path.with_suffix(".tmp")
        part.write_text(json.dumps(self.info, indent=1, default=str) + "\n", encoding="utf-8")
        os.replace(part, path)

    def add_point(self, rows: list[dict[str, Any]], steps: list[Step]) -> None:
        """Add a controlled point's results and its steps."""
        self.info["e1"] += rows
        self._append_steps("e1_steps.csv.gz", steps)
        self.save_info()

    def add_run(self, run: str, requests: Iterable[Served], steps: list[Step]) -> None:
        """Add a serving run."""
        lines = [json.dumps(one.as_row(run), separators=(",", ":")) for one in requests]
        self._append("requests.jsonl.gz", lines)
        self._append_steps("steps.csv.gz", steps)
        self.info["runs"].append({"run": run, "requests": len(lines), "steps": len(steps)})
        self.save_info()

    def _append_steps(self, name: str, steps: list[Step]) -> None:
        is_new = not (self._folder / f"{self._key}_{name}").exists()
        lines = [",".join(STEP_COLUMNS)] if is_new else []
        self._append(name, lines + [_csv_line(step) for step in steps])

    def _append(self, name: str, lines: list[str]) -> None:
        """Append lines as a gzip member of their own."""
        if lines:
            with (self._folder / f"{self._key}_{name}").open("ab") as file:
                file.write(gzip.compress(("\n".join(lines) + "\n").encode(), 6))


def _csv_line(step: Step) -> str:
    values = ((name, getattr(step, name)) for name in STEP_COLUMNS)
    return ",".join(f"{value:.6f}" if name in _SECONDS else str(value) for name, value in values)
