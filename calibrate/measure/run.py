"""A measurement run: all cases of a plan are measured and recorded, within a time limit.

The record is a file of JSON lines that stays intact after every line and can be resumed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.measure.bench import Bench
from calibrate.measure.case import Case, Variant
from calibrate.measure.machine import gpu_state, machine_line
from calibrate.measure.plan import Plan, Planned


class MeasureError(Exception):
    """Raised for an option or a file that cannot be used. The message says what would be right."""


class DeviceLostError(Exception):
    """Raised when the device answers no more calls of this process. A new process may continue."""


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


_MOST_LOSSES = 2
"""Number of device losses after which a kernel is not tried again."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Counts:
    """Counts of a run's results."""

    timed: int = 0
    refused: int = 0
    left: int = 0
    """Cases left out because the time was over."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run on one device. ``deadline`` is a time of `time.perf_counter`, or infinity for
    none."""

    plan: Plan
    record: Record
    device: str
    seed: int
    deadline: float
    say: Say

    def all(self) -> Counts:
        """Measure the plan, unit by unit. Each unit may use its share of the remaining time."""
        counts = Counts()
        machine = machine_line(self.device)
        self.record.add(machine)
        bench = Bench(self.plan, self.device, self.seed)
        for variant, times in self.record.losses.items():
            if times >= _MOST_LOSSES:
                bench.verdicts[variant] = f"the device was lost {times} times by this kernel"
        left = self.plan.units()
        put_off: dict[str, list[Planned]] = {}
        state = self._state(machine["id"])
        while left:
            family, cases = next(iter(left.items()))
            state(family, "before")
            until = self._share(left, family)
            rest = self._some(bench, machine["id"], cases, until, counts)
            state(family, "after")
            if rest:
                put_off[family] = rest
            del left[family]
        for family, cases in put_off.items():
            rest = self._some(bench, machine["id"], cases, self.deadline, counts)
            counts.left += len(rest)
            if rest:
                self.say(f"{family}: {len(rest)} cases left out, the time is over")
        return counts

    def _share(self, left: Mapping[str, Sequence[Planned]], family: str) -> float:
        now = time.perf_counter()
        expected = {name: sum(one.seconds for one in cases) for name, cases in left.items()}
        return now + (self.deadline - now) * expected[family] / sum(expected.values())

    def _state(self, machine: str) -> Callable[[str, str], None]:
        def write(family: str, when: str) -> None:
            if self.device == "cuda":
                line = {"kind": "state", "machine": machine, "family": family, "when": when}
                self.record.add(line | gpu_state())

        return write

    def _some(
        self,
        bench: Bench,
        machine: str,
        cases: Sequence[Planned],
        until: float,
        counts: Counts,
    ) -> list[Planned]:
        """Measure cases until a time, and return those that were not reached."""
        start, before = time.perf_counter(), (counts.timed, counts.refused)
        measured = 0
        for case, fields in bench.results(cases, until):
            identity = {
                "machine": machine,
                "family": case.family,
                "kernel": case.kernel,
                "formats": dict(case.formats),
                "shape": dict(case.shape),
            }
            is_refused = "reason" in fields
            self.record.add({"kind": "refused" if is_refused else "timing"} | identity | fields)
            counts.refused += is_refused
            counts.timed += not is_refused
            measured += 1
            if fields.get("device_lost"):
                raise DeviceLostError(fields["reason"])
        if measured:
            self.say(
                f"{cases[0].unit}: {counts.timed - before[0]} timed, "
                f"{counts.refused - before[1]} refused in {time.perf_counter() - start:.1f} s"
            )
        return [one for one in cases if one.case.key not in self.record.done]
