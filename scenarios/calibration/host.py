"""Probe the machine at hand, and compare it with the named hosts."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from calibrate.measure.host import HostRound, has_cuda, probe_host
from calibrate.measure.machine import cpu_name
from costmodels.engines.hosts import Host, named_hosts, probed_host, save_host
from sim.errors import ScenarioError

_STEADY = 1.25
"""Slowest over fastest round up to which a host counts as steady."""


def host_facts(seconds: float, *, device: str, out: Path | None) -> dict[str, Any]:
    """Return how fast this machine is beside the named hosts, and write its file if asked for.

    Raises `ScenarioError` without the device, or if the file cannot be written.
    """
    if device == "cuda" and not has_cuda():
        raise ScenarioError(
            "launches need torch and a CUDA GPU; --device cpu measures Python alone"
        )
    rounds = probe_host(seconds, device=device)
    host = host_of_rounds(rounds)
    if out is not None:
        save_host(host, out)
    return {
        "rounds": len(rounds),
        "drift": _drift(rounds),
        "is_steady": _drift(rounds) <= _STEADY,
        "source": host.evidence.source,
        "out": None if out is None else str(out),
        "hosts": [_facts(one) for one in (host, *named_hosts())],
    }


def host_of_rounds(rounds: Sequence[HostRound]) -> Host:
    """Return the host of the rounds' medians."""
    launches = [one.launch_s for one in rounds if one.launch_s is not None]
    date = datetime.now(UTC).date().isoformat()
    return probed_host(
        "this machine",
        f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        python_call_s=median(one.python_call_s for one in rounds),
        launch_s=median(launches) if launches else None,
        source=f"fleetcast calibrate host, {date}, {len(rounds)} rounds, slowest over fastest "
        f"{_drift(rounds):.2f}",
    )


def _drift(rounds: Sequence[HostRound]) -> float:
    """Return the slowest over the fastest round, by launches if there are any."""
    times = [one.launch_s or one.python_call_s for one in rounds]
    return max(times) / min(times)


def _facts(host: Host) -> dict[str, Any]:
    return {
        "name": host.name,
        "what": host.what,
        "python_call_s": host.python_call_s,
        "launch_s": host.launch_s,
        "label": host.evidence.label,
        "factor": host.factor,
    }
