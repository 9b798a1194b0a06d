"""One engine step: what a scheduler planned, and what is in flight once it has been launched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sim.request import Request
from sim.shape import StepShape

UNTIL_CHANGE = 1 << 60
"""For `sim.engine.batch.BatchBuilder.plan`: the choice stands until a request arrives, a block is
missing, or a request leaves while others wait."""


class Plan(NamedTuple):
    """What one step computes, and how often it may be repeated unchanged."""

    shape: StepShape
    prefills: list[tuple[Request, int]]
    """Prefilling requests, each with the number of tokens of its chunk."""
    held_back: list[Request]
    """Decoding requests that this step leaves out."""
    decodes: bool
    """Whether the decode group (without `held_back`) is part of the step."""
    repeat: int
    until_ns: int | None
    preempted: int


@dataclass(slots=True)
class InFlight:
    """A launched step whose outputs have not been read."""

    gpu_end_ns: int
    update_ns: int
    row: int
    is_empty: bool = False
    parts: int = 0
    """Sequences that get tokens, if an API server sends them on."""
    sent_ns: int = 0
    """When its tokens are with their clients, once that is known; only with an API server."""
    first_tokens: list[Request] = field(default_factory=list)
    finishing: list[Request] = field(default_factory=list)
