"""Results by their address, in one file that only grows: what is there is never run again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from scenarios.sweep.columns import Row
from sim.errors import ScenarioError

FILE = "results.jsonl"
Status = Literal["done", "failed", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one run."""

    key: str
    status: Status
    """``failed``: it cannot be run as written, and would fail again. ``lost``: its worker died or
    the simulator broke; the next start tries it again."""
    row: Row = field(default_factory=dict)
    error: str | None = None
    core_s: float = 0.0
    """CPU time it took."""


class Results:
    """The results of a folder. One process at a time writes them; a line is a result.

    A process that is killed leaves at most a line cut short, which is not read.
    """

    def __init__(self, folder: Path) -> None:
        """Read what is there. Raises ScenarioError where the folder cannot be read or written."""
        self.path = folder / FILE
        self.known: dict[str, Result] = {}
        try:
            self._file: IO[str] = self.path.open("a+", encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"{self.path}: cannot be used: {error.strerror}") from None
        if not _locked(self._file):
            self._file.close()
            raise ScenarioError(f"{folder}: another sweep is writing into it; give another --out")
        self._file.seek(0)
        is_whole = True
        for line in self._file:
            is_whole = line.endswith("\n")
            self._read(line)
        if not is_whole:
            self._file.write("\n")

    def add(self, result: Result) -> None:
        """Keep a result: it is in the file when this returns."""
        line: dict[str, Any] = {"key": result.key, "status": result.status}
        line |= {"core_s": round(result.core_s, 6)}
        line |= {"error": result.error} if result.error is not None else {"row": result.row}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        self.known[result.key] = result  # last: whoever stops us here finds the line, or nothing

    def forget_failed(self) -> None:
        """Have runs that failed done again."""
        self.known = {key: one for key, one in self.known.items() if one.status == "done"}

    def close(self) -> None:
        """Let others write."""
        self._file.close()

    def _read(self, line: str) -> None:
        try:
            found = Result(**json.loads(line))
        except (ValueError, TypeError):
            return  # cut short, or of another version
        if found.status == "lost":
            self.known.pop(found.key, None)
        else:
            self.known[found.key] = found


def _locked(file: IO[str]) -> bool:
    """Two sweeps in one folder would run the same points and write one table over the other."""
    try:
        import fcntl
    except ImportError:  # not on this system: nothing keeps the user from it
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
