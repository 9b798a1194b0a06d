"""How many replicas there are, over time: an autoscaler's bounds and delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.errors import ScenarioError
from sim.protocols import Autoscaler, ServiceView


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """Replicas between two numbers; the fleet has the greater one built."""

    make: Callable[[ServiceView], Autoscaler]
    min_replicas: int = 1
    initial_replicas: int | None = None
    """At the start, ready; None: ``min_replicas``."""
    interval_ns: int = 15_000_000_000
    """Between two looks at the load."""
    of_decode_engines: bool = False
    """Of those that decode for others; otherwise of those that take arrivals."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1 or self.interval_ns < 1:
            raise ScenarioError("min_replicas and the scaling interval must be at least 1")

    def first(self, most: int) -> int:
        """Replicas at the start, of ``most`` that are built."""
        initial = self.min_replicas if self.initial_replicas is None else self.initial_replicas
        if not self.min_replicas <= initial <= most:
            raise ScenarioError(
                f"a pool of {most} replicas is scaled between {self.min_replicas} and {most}; it "
                f"cannot begin with {initial}"
            )
        return initial
