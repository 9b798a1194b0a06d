"""What stands between clients and engines, and what befalls them: options of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sim.clients import ClientConfig
from sim.elastic import ScalingConfig
from sim.faults import FaultConfig
from sim.protocols import Admission, ServiceView


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """All off by default."""

    admission: Callable[[ServiceView], Admission] | None = None
    clients: ClientConfig = field(default_factory=ClientConfig)
    faults: FaultConfig | None = None
    scaling: ScalingConfig | None = None
    seed: int = 0


@dataclass(slots=True)
class ServiceLog:
    """What happened to the engines, and how many retries there were."""

    lives: list[list[int]] = field(default_factory=list)
    """[replica, from, to]: paid for, from its being asked for to its end (-1: the run's end)."""
    outages: list[list[int]] = field(default_factory=list)
    """[replica, down, known to be down, up again] (-1: not within the run)."""
    sent: list[int] = field(default_factory=list)
    """When attempts were sent, first ones and retries, in order."""
    client_retries: int = 0
    proxy_retries: int = 0
    retries_denied: int = 0
    """For want of budget."""
