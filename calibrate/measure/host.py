"""Probe a host: how fast it calls Python functions and launches kernels, again and again.

A virtual machine may run at half its speed within minutes, so that one probe says little: rounds
are spread over the time given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

_REPEATS = 7
_CALLS = 100_000
_LAUNCHES = 1_000
_ROUND_S = 1.0


class HostRound(NamedTuple):
    """Seconds of one call and one launch, medians of a round."""

    python_call_s: float
    launch_s: float | None
    """None without a GPU."""


def probe_host(seconds: float, *, device: str) -> list[HostRound]:
    """Probe for about ``seconds``, at least once, one round each second.

    ``device`` is ``cuda``, which needs torch and a GPU, or ``cpu``, which launches nothing.
    """
    launches = _cuda_launches() if device == "cuda" else None
    end_s = time.perf_counter() + seconds
    rounds: list[HostRound] = []
    while not rounds or time.perf_counter() < end_s:
        next_s = time.perf_counter() + _ROUND_S
        launch_s = None if launches is None else median(launches() for _ in range(_REPEATS))
        rounds.append(HostRound(median(_python_s() for _ in range(_REPEATS)), launch_s))
        time.sleep(max(0.0, min(next_s, end_s) - time.perf_counter()))
    return rounds


def has_cuda() -> bool:
    """Return whether torch is installed and finds a GPU."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _python_s() -> float:
    """Return the seconds of an empty call, loop included."""

    def nothing() -> None:
        return None

    start_s = time.perf_counter()
    for _ in range(_CALLS):
        nothing()
    return (time.perf_counter() - start_s) / _CALLS


def _cuda_launches() -> Callable[[], float]:
    """Return what times a launch of a tiny kernel, without waiting for its end."""
    import torch

    values = torch.zeros(64, device="cuda")

    def launch_s() -> float:
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        for _ in range(_LAUNCHES):
            values.add_(1.0)
        return (time.perf_counter() - start_s) / _LAUNCHES

    return launch_s
