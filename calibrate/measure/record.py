"""The file of measurements: JSON lines that stay intact after every line and can be resumed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrate.measure.case import Case, Variant
from calibrate.measure.errors import MeasureError

_SYNC_EVERY_S = 1.0


class Record:
    """Appends lines to ``path`` and knows which cases it holds.

    A last line without its newline was cut while being written. It is removed, and its case counts
    as not measured. Raises `MeasureError` for a line that is not a JSON object, for a file of
    another ``device``, and for one that cannot be written or that another run writes to.
    """

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise MeasureError(f"cannot write {path}: {error.strerror}") from error
        self._synced_at = 0.0
        self.done: set[str] = set()
        """Keys of the cases that were timed or refused."""
        self.losses: Counter[Variant] = Counter()
        """Number of device losses, by the variant that was being measured."""
        try:
            for number, text in enumerate(self._whole_lines(), 1):
                self._read(number, text, device)
        except MeasureError:
            self.close()
            raise

    def _whole_lines(self) -> list[bytes]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise MeasureError(f"{self.path}: another run is writing to it") from error
        self._file.seek(0)
        whole = self._file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        return whole.splitlines()

    def _read(self, number: int, text: bytes, device: str) -> None:
        where = f"{self.path}, line {number}"
        try:
            line = json.loads(text)
            kind = line["kind"]
            if kind in ("timing", "refused"):
                self._note(line)
        except (ValueError, KeyError, TypeError) as error:
            raise MeasureError(f"{where}: not a line of a measurement file") from error
        if kind == "machine" and line.get("device") != device:
            raise MeasureError(
                f"{where}: measured on {line.get('device')}, and this is {device}; "
                "give each device a file of its own (--out)"
            )

    def add(self, line: Mapping[str, Any]) -> None:
        """Write one line. It survives the end of this process at once, and of the machine within
        a second."""
        if line["kind"] in ("timing", "refused"):
            self._note(line)
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        if time.monotonic() - self._synced_at > _SYNC_EVERY_S:
            os.fsync(self._file.fileno())
            self._synced_at = time.monotonic()

    def _note(self, line: Mapping[str, Any]) -> None:
        case = case_of(line)
        self.done.add(case.key)
        self.losses[case.variant] += bool(line.get("device_lost"))

    def close(self) -> None:
        """Close the file and release its lock."""
        os.fsync(self._file.fileno())
        self._file.close()


def case_of(line: Mapping[str, Any]) -> Case:
    """Return the case of a ``timing`` or ``refused`` line."""
    return Case(
        family=line["family"], kernel=line["kernel"], formats=line["formats"], shape=line["shape"]
    )
