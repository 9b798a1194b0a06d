"""Find the measurements in a folder: which keys there are, and which files each has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrate.fits.engine_log import RequestRow, StepRows, read_request_runs, read_step_runs
from costmodels.datafile import read_json_object
from sim.errors import ScenarioError

_INFO = "_info.json"
_E1_STEPS, _STEPS, _REQUESTS = "_e1_steps.csv", "_steps.csv", "_requests.jsonl"
FILE_ENDS = (
    _INFO,
    *(f"{name}{zipped}" for name in (_E1_STEPS, _STEPS, _REQUESTS) for zipped in (".gz", "")),
)
"""File endings of a key; of two endings that both match, the longer comes first."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The measurements of one engine, whose files are read on first access.

    Every reader raises `ScenarioError` or `TraceError` naming file, line and field if a file is
    damaged.
    """

    key: str
    info_path: Path

    @cached_property
    def info(self) -> dict[str, Any]:
        """The engine's settings, the controlled steps (``e1``) and what its runs were."""
        return read_json_object(self.info_path)

    @cached_property
    def request_runs(self) -> dict[str, list[RequestRow]]:
        """Requests by serving run, in order of hand-over; empty if none were recorded."""
        path = self._file(_REQUESTS)
        return read_request_runs(path) if path else {}

    @cached_property
    def step_runs(self) -> dict[str, StepRows]:
        """Engine steps by serving run; empty if none were recorded."""
        path = self._file(_STEPS)
        return read_step_runs(path) if path else {}

    @cached_property
    def controlled_runs(self) -> dict[str, StepRows]:
        """Engine steps by controlled point, as ``boot:point`` or ``point``."""
        path = self._file(_E1_STEPS)
        return read_step_runs(path) if path else {}

    def _file(self, name: str) -> Path | None:
        paths = (self.info_path.with_name(f"{self.key}{name}{end}") for end in (".gz", ""))
        return next((path for path in paths if path.is_file()), None)


def find_recordings(folder: Path, only: list[str] | None = None) -> list[Recording]:
    """Return the recordings of a folder, by key; only those in ``only`` if given.

    Raises `ScenarioError` if there is none, or if one that is asked for is missing.
    """
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: no such folder; give the one with the KEY{_INFO} files")
    paths = {path.name.removesuffix(_INFO): path for path in sorted(folder.glob(f"?*{_INFO}"))}
    if not paths:
        raise ScenarioError(f"{folder}: no KEY{_INFO} in it; each recorded engine has one")
    missing = [key for key in only or () if key not in paths]
    if missing:
        raise ScenarioError(
            f"{folder}: nothing was recorded as {', '.join(missing)}; there are {', '.join(paths)}"
        )
    return [Recording(key=key, info_path=path) for key, path in paths.items() if _in(key, only)]


def _in(key: str, only: list[str] | None) -> bool:
    return not only or key in only
