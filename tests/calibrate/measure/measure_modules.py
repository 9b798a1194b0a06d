"""An invented kernel module for `calibrate.measure` that is right, wrong or slow on request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from calibrate.measure.case import Case, Prepared
from calibrate.measure.plan import Plan, Planned

TOLERANCE = {"exact": 1e-6, "loose": 0.1}


def case(size: int, kernel: str = "right", number: str = "exact") -> Case:
    """A case of family ``made_up``."""
    formats = {"activations": number}
    return Case(family="made_up", kernel=kernel, formats=formats, shape={"size": size})


def module(errors: dict[str, Any], calls: list[int] | None = None, call_s: float = 0.0) -> Any:
    """``errors``: by kernel, its relative error, an exception to raise, or None for no check.

    Sizes of 100 and more are right. The sizes of the cases that are called are appended to
    ``calls``; a call sleeps for ``call_s``.
    """
    seen = [] if calls is None else calls

    def call(size: int) -> None:
        seen.append(size)
        time.sleep(call_s)

    def prepare(one: Case, device: str, seed: int) -> Prepared:
        error = errors[one.kernel]
        size = int(one.shape["size"])
        if isinstance(error, Exception) and size < 100:
            raise error
        return Prepared(
            calls=[lambda: call(size)],
            error=None if error is None else lambda: error if size < 100 else 0.0,
            flops=float(size),
            num_bytes=1.0,
        )

    return SimpleNamespace(prepare=prepare, TOLERANCE=TOLERANCE)


def planned(made: Any, cases: list[Case], seconds: float = 1e-3) -> Plan:
    """A plan of just these cases."""
    plan = Plan({"made_up": [Planned(one, made, seconds) for one in cases]})
    for one in plan.families["made_up"]:
        plan.variants.setdefault(one.case.variant, []).append(one)
    return plan


def lines(count: int) -> Iterator[dict[str, Any]]:
    """A machine line, then timings of ``count`` cases."""
    yield {"kind": "machine", "id": "abc", "device": "made up"}
    for size in range(count):
        one = case(size)
        yield {
            "kind": "timing",
            "machine": "abc",
            "family": one.family,
            "kernel": one.kernel,
            "formats": dict(one.formats),
            "shape": dict(one.shape),
            "seconds": 1e-3,
        }
