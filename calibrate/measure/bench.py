"""Take single measurements: prepare, check and time a case. A failure becomes a refusal."""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from calibrate.measure.case import Case, Prepared, Variant
from calibrate.measure.plan import Plan, Planned
from calibrate.measure.timing import Pacer, time_calls

_CHECK_FLOPS = {"cuda": 2e11, "cpu": 2e9}
"""Most FLOPs of a call that is checked; the float32 reference of larger ones would take too
long."""
_LONGEST_REASON = 300

Fields = dict[str, Any]


class RefusedError(Exception):
    """A case that cannot be timed; the message is the reason."""


class Bench:
    """Takes single measurements, and remembers which variants have been checked."""

    def __init__(self, plan: Plan, device: str, seed: int) -> None:
        self._plan, self._device, self._seed = plan, device, seed
        self._pacer = Pacer()
        self.verdicts: dict[Variant, str | None] = {}
        """Reason why no shape of a variant may be timed, or None if its smallest shapes are
        right."""

    def results(self, cases: Sequence[Planned], until: float) -> Iterator[tuple[Case, Fields]]:
        """Yield each case that the time allows with the fields of its line. A refusal has a
        reason."""
        if cases and hasattr(cases[0].module, "measure"):
            yield from self._together(cases, until)
            return
        for one in cases:
            if time.perf_counter() + one.seconds > until:
                return
            yield one.case, self._result(one)

    def _together(self, cases: Sequence[Planned], until: float) -> Iterator[tuple[Case, Fields]]:
        """Measure all cases of a module that starts processes of its own. Cases it cannot
        measure are refused."""
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
    """Return the relative error of a call, or None if it is too large to check.

    Raises `RefusedError` if the error is not a number or above the module's tolerance.
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
    """Return the fields of a ``timing`` line other than the case's."""
    rounded = {
        name: float(f"{value:.5g}") if name.startswith("seconds") else value
        for name, value in timing.items()
    }
    error = None if error is None else float(f"{error:.3g}")
    return rounded | {"error": error, "flops": prepared.flops, "bytes": prepared.num_bytes}


def case_seed(case: Case, seed: int) -> int:
    """Return a case's own seed, the same in every run with the same ``seed``."""
    return zlib.crc32(case.key.encode()) ^ seed


def reason_of(error: BaseException) -> str:
    """Describe an error in one line."""
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
    """Release cached memory before it fills the device. Releasing it after every case would be
    too slow."""
    if device == "cpu":
        return
    import torch

    try:
        _, total = torch.cuda.mem_get_info()
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > total / 3:
            torch.cuda.empty_cache()
    except Exception as error:
        print(f"cannot free memory: {reason_of(error)}", file=sys.stderr)
