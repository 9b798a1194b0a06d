"""What goes wrong, when: engines that crash, GPUs that are lost, slow nodes, cut links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sim.draws import uniform
from sim.errors import ScenarioError

Kind = Literal["engine_crash", "gpu_lost", "slow_node", "link_slow", "link_cut"]

_DRAW = -(1 << 40)  # a replica's stream: not one of any request


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that happens at a known time."""

    at_ns: int
    kind: Kind
    replica: int | None = None
    """Whose engine or node; of the links, both of its ends. Replicas count over all pools."""
    link: str | None = None
    """A link by name (``core``), in place of a replica's."""
    factor: float = 1.0
    """A slow node's steps take so many times as long; a slow link has this share of its bytes."""
    duration_ns: int = 0
    """Of slow nodes and links, and of cuts."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ScenarioError(
                f"fault kind {self.kind!r} is not known; known: {', '.join(get_args(Kind))}"
            )
        of_link = self.kind in ("link_slow", "link_cut")
        if self.at_ns < 0 or (self.replica is None) == (self.link is None):
            raise ScenarioError(f"a {self.kind} needs a time and either a replica or a link")
        if self.link is not None and not of_link:
            raise ScenarioError(f"a {self.kind} is of a replica, not of a link")
        if (of_link or self.kind == "slow_node") and self.duration_ns < 1:
            raise ScenarioError(f"a {self.kind} needs a duration")
        if self.kind == "slow_node" and not self.factor >= 1:
            raise ScenarioError(f"a slow_node's factor is {self.factor}; it is at least 1")
        if self.kind == "link_slow" and not 0 < self.factor <= 1:
            raise ScenarioError(f"a link_slow's factor is {self.factor}; it is in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultConfig:
    """A schedule, random crashes, and what follows on them."""

    schedule: tuple[Fault, ...] = ()
    mtbf_ns: int | None = None
    """Mean time a replica is up until its engine crashes, exponential; None: only what is
    scheduled."""
    detection_ns: int = 5_000_000_000
    """From a crash until the router knows of it (health checks), and a restart begins."""
    proxy_retries: int = 0
    """How many other engines a lost or refused request is tried on, before its client knows."""

    def __post_init__(self) -> None:
        if self.mtbf_ns is not None and self.mtbf_ns < 1:
            raise ScenarioError(f"mtbf_ns is {self.mtbf_ns}; it is at least 1, or None")
        if self.detection_ns < 0 or self.proxy_retries < 0:
            raise ScenarioError("detection_ns and proxy_retries must be at least 0")


def time_to_crash_ns(config: FaultConfig, seed: int, replica: int, life: int) -> int:
    """How long a replica's process is up, its ``life``-th: a draw of its own."""
    assert config.mtbf_ns is not None
    share = 1 - uniform(seed, _DRAW - replica, life)  # in (0, 1]
    return max(1, round(-math.log(share) * config.mtbf_ns))
