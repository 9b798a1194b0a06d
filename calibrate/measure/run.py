"""The loop: each case is prepared, checked, timed and recorded; a failure is a refusal."""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibrate.measure.case import Case, Prepared, Variant
from calibrate.measure.errors import DeviceLostError
from calibrate.measure.machine import gpu_state, machine_line
from calibrate.measure.plan import Plan, Planned
from calibrate.measure.record import Record
from calibrate.measure.timing import Pacer, time_calls

_CHECK_FLOPS = {"cuda": 2e11, "cpu": 2e9}
"""Larger calls are not checked themselves: their float32 reference would take too long."""
_LONGEST_REASON = 300
_MOST_LOSSES = 2
"""A kernel that has cost the device so often is not tried again."""

Say = Callable[[str], None]
Fields = dict[str, Any]


class RefusedError(Exception):
    """A case that cannot be timed; the message is the reason."""


@dataclass(slots=True)
class Counts:
    """What a run did."""

    timed: int = 0
    refused: int = 0
    left: int = 0
    """Cases that the budget left out."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run on one device. ``deadline`` is a time of `time.perf_counter`, infinity for none."""

    plan: Plan
    record: Record
    device: str
    seed: int
    deadline: float
    say: Say

    def all(self) -> Counts:
        """Measure the plan, unit by unit; each may use its share of the time that is left."""
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
        """Measure cases until a time; returns those that were not reached."""
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


class Bench:
    """Takes single measurements; remembers which variants have been checked."""

    def __init__(self, plan: Plan, device: str, seed: int) -> None:
        self._plan, self._device, self._seed = plan, device, seed
        self._pacer = Pacer()
        self.verdicts: dict[Variant, str | None] = {}
        """Why no shape of a variant may be timed; None where its smallest are right."""

    def results(self, cases: Sequence[Planned], until: float) -> Iterator[tuple[Case, Fields]]:
        """Each case that the time allows with the fields of its line; a refusal has a reason."""
        if cases and hasattr(cases[0].module, "measure"):
            yield from self._together(cases, until)
            return
        for one in cases:
            if time.perf_counter() + one.seconds > until:
                return
            yield one.case, self._result(one)

    def _together(self, cases: Sequence[Planned], until: float) -> Iterator[tuple[Case, Fields]]:
        """All of a module that starts processes of its own; what it cannot do is refused."""
        wanted = [one.case for one in cases]
        module, seen = cases[0].module, set()
        try:
            for case, fields in module.measure(wanted, self._device, self._seed, until):
                seen.add(case.key)
                yield case, fields
        except Exception as error:
            for case in wanted:
                if case.key not in seen:
                    yield case, {"reason": reason_of(error)}

    def _result(self, one: Planned) -> Fields:
        try:
            return self._measured(one)
        except RefusedError as error:
            return {"reason": str(error)}
        except Exception as error:
            fields: Fields = {"reason": reason_of(error)}
            return fields | ({"device_lost": True} if _is_lost(self._device) else {})
        finally:
            _free_memory(self._device)

    def _measured(self, one: Planned) -> Fields:
        verdict = self._verdict(one.case.variant)
        if verdict is not None:
            raise RefusedError(verdict)
        prepared = one.module.prepare(one.case, self._device, case_seed(one.case, self._seed))
        error = checked(one, prepared, self._device)
        timing = time_calls(prepared, self._device, self._pacer)
        return timing_fields(asdict(timing), error, prepared)

    def _verdict(self, variant: Variant) -> str | None:
        if variant not in self.verdicts:
            self.verdicts[variant] = self._judged(variant)
        return self.verdicts[variant]

    def _judged(self, variant: Variant) -> str | None:
        first: str | None = None
        for one in self._plan.variants[variant]:
            try:
                seed = case_seed(one.case, self._seed)
                prepared = one.module.prepare(one.case, self._device, seed)
                if prepared.error is not None:
                    checked(one, prepared, self._device, most_flops=float("inf"))
                    return None
            except RefusedError as error:
                return f"at {dict(one.case.shape)}: {error}"
            except Exception as error:
                first = first or reason_of(error)
                if _is_lost(self._device):
                    raise
        return first or "no shape of this kernel and formats has a reference to check it against"


def checked(
    one: Planned, prepared: Prepared, device: str, most_flops: float | None = None
) -> float | None:
    """The relative error of a call, None where it is too large to check.

    Raises `RefusedError` for an error that is no number or above the module's tolerance.
    """
    limit = _CHECK_FLOPS[device] if most_flops is None else most_flops
    if prepared.error is None or prepared.flops > limit:
        return None
    error = prepared.error()
    formats = one.case.formats.values()
    tolerance = max((one.module.TOLERANCE[number] for number in formats), default=0.0)
    if not error <= tolerance:
        raise RefusedError(f"relative error {error:.3g}, at most {tolerance:g} is right")
    return error


def timing_fields(
    timing: Mapping[str, Any], error: float | None, prepared: Prepared
) -> dict[str, Any]:
    """What a ``timing`` line says beside the case."""
    rounded = {
        name: float(f"{value:.5g}") if name.startswith("seconds") else value
        for name, value in timing.items()
    }
    error = None if error is None else float(f"{error:.3g}")
    return rounded | {"error": error, "flops": prepared.flops, "bytes": prepared.num_bytes}


def case_seed(case: Case, seed: int) -> int:
    """A case's own seed, the same in every run with the same ``seed``."""
    return zlib.crc32(case.key.encode()) ^ seed


def reason_of(error: BaseException) -> str:
    """One line that says what went wrong."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_LONGEST_REASON]


def _is_lost(device: str) -> bool:
    if device == "cpu":
        return False
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _free_memory(device: str) -> None:
    """Give cached memory back before it fills the device: freeing it each time costs too much."""
    if device == "cpu":
        return
    import torch

    try:
        _, total = torch.cuda.mem_get_info()
        if torch.cuda.memory_reserved() > total / 3:
            torch.cuda.empty_cache()
    except Exception as error:
        print(f"cannot free memory: {reason_of(error)}", file=sys.stderr)
