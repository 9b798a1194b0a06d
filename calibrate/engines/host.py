"""How fast the host is at this moment: launches of a tiny kernel, and empty calls in Python."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

_REPEATS = 7
_LAUNCHES, _CALLS = 1000, 100_000


def probe_host(when: str) -> dict[str, Any]:
    """Return the milliseconds of 1,000 launches (None without a GPU) and of 100,000 empty calls.

    A virtual machine's processor may be twice as slow a few minutes later: probe at the start and
    the end of a measurement, and say ``when``.
    """
    launch = _launcher()
    return {
        "when": when,
        "cores": os.cpu_count(),
        "launch_1000_ms": None if launch is None else _median_ms(launch, _LAUNCHES),
        "python_100k_calls_ms": _median_ms(lambda: None, _CALLS),
    }


def _launcher() -> Callable[[], Any] | None:
    """Return a call that launches a kernel on 64 numbers; None without torch or a GPU."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    numbers = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    return lambda: numbers.add_(1.0)


def _median_ms(call: Callable[[], Any], times: int) -> float:
    taken_ms = []
    for _ in range(_REPEATS):
        start_s = time.perf_counter()
        for _ in range(times):
            call()
        taken_ms.append((time.perf_counter() - start_s) * 1e3)
    return round(statistics.median(taken_ms), 3)
