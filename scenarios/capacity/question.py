"""What a capacity search is asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked for."""

    attainment: float = 0.99
    precision: float = 0.03
    stable: bool = False
    """The highest rate whose queue does not grow, whatever the SLO."""
    vary: str | None = None
    num_requests: int | None = None
    """Counted requests of each run; None: chosen."""
    bands: bool = True
    """Also how far off the capacity may be because the model is."""
    load: float | None = None
    """A load to say the replicas for."""
    check: bool = False
    """Simulate that load on those replicas."""
