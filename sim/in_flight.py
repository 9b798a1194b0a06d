"""Steps an engine has launched and not yet read."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.request import Request


@dataclass(slots=True)
class InFlight:
    """A launched step whose outputs have not been read."""

    gpu_end_ns: int
    update_ns: int
    row: int
    is_empty: bool = False
    first_tokens: list[Request] = field(default_factory=list)
    finishing: list[Request] = field(default_factory=list)
