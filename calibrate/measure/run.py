"""A measurement run: all cases of a plan are measured and recorded, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calibrate.measure.bench import Bench
from calibrate.measure.errors import DeviceLostError
from calibrate.measure.machine import gpu_state, machine_line
from calibrate.measure.plan import Plan, Planned
from calibrate.measure.record import Record

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
