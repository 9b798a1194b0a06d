"""Options of one run around the engines: clients, faults, scaling; and the log of what happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from sim.clock import FOREVER_NS, to_s
from sim.draws import uniform
from sim.errors import ScenarioError
from sim.protocols import Admission, Autoscaler, ServiceView
from sim.request import Request

_RETRY_DRAW = -(1 << 33)  # index of a request's draws for retries, used by nothing else


class AdmitAll:
    """Admission that turns no request away."""

    def __init__(self, view: ServiceView) -> None:
        pass

    def admit(self, request: Request) -> str | None:
        """Return None: every request is admitted."""
        return None

    def left(self, request: Request) -> None:
        """Ignore who leaves: nothing is counted."""


class Deadline(NamedTuple):
    """A time at which a client looks for what it waits for, and gives up if it is not there."""

    after_ns: int
    """Time since the attempt was sent."""
    reason: str
    """Why the client gives up."""
    needs_answer: bool
    """Whether the client waits for the whole answer; otherwise, for the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How clients behave. Times count from the sending of an attempt."""

    ttft_timeout_ns: int = FOREVER_NS
    """A client gives up if it has no first token after this time."""
    e2e_timeout_ns: int = FOREVER_NS
    """A client gives up if it does not have the whole answer after this time."""
    max_retries: int = 0
    """Most attempts after the first."""
    backoff_ns: int = 1_000_000_000
    """Wait before the first retry, doubled for each further one; half of it is drawn at random."""
    max_backoff_ns: int = 60_000_000_000
    retry_budget: float = 0.0
    """Retries as a share of first attempts, over all clients (Site Reliability Engineering, ch.
    21: a tenth)."""
    budget_burst: float = math.inf
    """Retries allowed before any budget was earned, and the most that is saved up; infinite:
    retries need no budget."""
    server_notices: bool = True
    """Whether the engine learns that a client has gone and drops its request; if not, it serves
    the request to its end."""

    def __post_init__(self) -> None:
        for name in ("ttft_timeout_ns", "e2e_timeout_ns"):
            value = getattr(self, name)
            if value < 1:
                raise ScenarioError(f"{name} is {value}; it is at least 1")
        if self.e2e_timeout_ns < self.ttft_timeout_ns < FOREVER_NS:
            raise ScenarioError("the time-out of the whole answer is not before its first token's")
        if self.max_retries < 0 or self.backoff_ns < 0 or self.max_backoff_ns < self.backoff_ns:
            raise ScenarioError(
                "max_retries and backoff_ns must be at least 0, max_backoff_ns more"
            )
        if self.retry_budget < 0:
            raise ScenarioError(f"retry_budget is {self.retry_budget}; it is at least 0")

    @property
    def deadlines(self) -> tuple[Deadline, ...]:
        """Return the deadlines of each attempt, in order; empty if clients wait forever."""
        ttft_ns, e2e_ns = self.ttft_timeout_ns, self.e2e_timeout_ns
        both = (
            Deadline(ttft_ns, f"no first token after {to_s(ttft_ns):g} s", needs_answer=False),
            Deadline(e2e_ns, f"no answer after {to_s(e2e_ns):g} s", needs_answer=True),
        )
        return tuple(deadline for deadline in both if deadline.after_ns < FOREVER_NS)


class RetryBudget:
    """Every first attempt earns a share of a retry, every retry takes one."""

    def __init__(self, config: ClientConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._saved = config.budget_burst
        self.denied = 0
        """Retries that were not made because the budget was empty."""

    def first_attempt(self) -> None:
        """Count a request that is sent for the first time."""
        self._saved = min(self._saved + self._config.retry_budget, self._config.budget_burst)

    def take(self, attempt: int) -> bool:
        """Take a retry after attempt ``attempt`` (1, 2, ...) failed; False if none is allowed."""
        if attempt > self._config.max_retries:
            return False
        if self._saved < 1:
            self.denied += 1
            return False
        self._saved -= 1
        return True

    def delay_ns(self, request: int, attempt: int) -> int:
        """Return how long after attempt ``attempt`` failed a request is sent again."""
        config = self._config
        longest = min(config.backoff_ns << min(attempt - 1, 40), config.max_backoff_ns)
        return longest - int(uniform(self._seed, request, _RETRY_DRAW + attempt) * (longest // 2))


Kind = Literal["engine_crash", "gpu_lost", "slow_node", "link_slow", "link_cut"]

_FAULT_DRAW = -(1 << 40)  # first stream of the replicas' draws, beyond those of requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One event at a known time."""

    at_ns: int
    kind: Kind
    replica: int | None = None
    """Replica of the engine or node concerned; for links, both of its ends. Replicas count over
    all pools."""
    link: str | None = None
    """Name of a link (``core``), instead of a replica's links."""
    factor: float = 1.0
    """Slow nodes: steps take this many times as long. Slow links: share of the bandwidth that is
    left."""
    duration_ns: int = 0
    """Duration of slow nodes, slow links and cuts."""

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
    """Scheduled faults, random crashes, and how the service reacts to them."""

    schedule: tuple[Fault, ...] = ()
    mtbf_ns: int = FOREVER_NS
    """Mean time until an engine crashes, exponential; `FOREVER_NS`: only scheduled faults."""
    detection_ns: int = 5_000_000_000
    """Time from a crash until the router knows of it (health checks) and a restart begins."""
    proxy_retries: int = 0
    """Number of other engines that a lost or refused request is tried on, before its client
    knows."""

    def __post_init__(self) -> None:
        if self.mtbf_ns < 1:
            raise ScenarioError(f"mtbf_ns is {self.mtbf_ns}; it is at least 1")
        if self.detection_ns < 0 or self.proxy_retries < 0:
            raise ScenarioError("detection_ns and proxy_retries must be at least 0")


def time_to_crash_ns(config: FaultConfig, seed: int, replica: int, life: int) -> int:
    """Return how long the ``life``-th process of a replica is up: a draw of its own."""
    share = 1 - uniform(seed, _FAULT_DRAW - replica, life)  # in (0, 1]
    return max(1, round(-math.log(share) * config.mtbf_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """Bounds and delays of an autoscaler; the fleet is built with the largest number of
    replicas."""

    make: Callable[[ServiceView], Autoscaler]
    min_replicas: int = 1
    initial_replicas: int = 1
    """Replicas ready at the start, at least ``min_replicas``."""
    interval_ns: int = 15_000_000_000
    """Time between two decisions."""
    of_decode_engines: bool = False
    """Whether it scales the decode engines; otherwise those that take arrivals."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1 or self.interval_ns < 1:
            raise ScenarioError("min_replicas and the scaling interval must be at least 1")

    def first(self, most: int) -> int:
        """Return the replicas at the start, of ``most`` that are built."""
        if not self.min_replicas <= self.initial_replicas <= most:
            raise ScenarioError(
                f"a pool of {most} replicas is scaled between {self.min_replicas} and {most}; it "
                f"cannot begin with {self.initial_replicas}"
            )
        return self.initial_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What stands around the engines; everything is off by default."""

    admission: Callable[[ServiceView], Admission] = AdmitAll
    clients: ClientConfig = field(default_factory=ClientConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)
    scaling: ScalingConfig | None = None
    """How many replicas there are; None: all, all the time."""
    seed: int = 0


@dataclass(slots=True)
class ServiceLog:
    """What happened to the engines, and how many retries there were."""

    lives: list[list[int]] = field(default_factory=list)
    """[replica, from, to] of billed time, from the request for a machine to its end (-1: the
    run's end)."""
    outages: list[list[int]] = field(default_factory=list)
    """[replica, down, known to be down, up again] (-1: not within the run)."""
    sent: list[int] = field(default_factory=list)
    """Times of attempts, first ones and retries, in order."""
    client_retries: int = 0
    proxy_retries: int = 0
    retries_denied: int = 0
    """Retries that were not made because the budget was empty."""
