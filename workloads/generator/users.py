"""A closed loop of users: each sends its next request a think time after its last answer."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ScenarioError
from workloads.generator.durations import NO_TIME, Durations

MOST_USERS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Raises ScenarioError for values it cannot have."""

    count: int
    think_s: Durations = NO_TIME
    """From an answer to the user's next request, or next session; within a session the turns have
    a think time of their own."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_USERS:
            raise ScenarioError(f"{self.count} users; expected 1 to {MOST_USERS}")
