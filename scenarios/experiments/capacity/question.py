"""The question of a capacity search, the load that it varies, and the length of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.files.messages import nearest
from scenarios.schema import Scenario
from scenarios.schema.workload import Source
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a user asks of a capacity search."""

    attainment: float = 0.99
    precision: float = 0.03
    stable: bool = False
    """Whether to find the highest rate whose queue does not grow, whatever the SLO."""
    vary: str | None = None
    num_requests: int | None = None
    """Counted requests per run; None: chosen automatically."""
    bands: bool = True
    """Whether to estimate also how far off the capacity may be because of the model's error."""
    load: float | None = None
    """Load for which to return the number of replicas."""
    check: bool = False
    """Whether to simulate that load on those replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A field of the workload that sets the load."""

    field: str
    unit: str
    closed_loop: bool
    """Whether the load is a whole number and its queue cannot grow without bound."""

    def at(self, scenario: Scenario, level: float, **workload: Any) -> Scenario:
        """Return the scenario at a load; ``workload`` holds other fields of its workload to
        change."""
        value = round(level) if self.closed_loop else level
        changed = scenario.workload.model_copy(update={self.field: value, **workload})
        return scenario.model_copy(update={"workload": changed})

    def value(self, scenario: Scenario) -> float | None:
        """Return the scenario's own load; None if it gives none."""
        given: float | None = getattr(scenario.workload, self.field)
        return given


RATE = Variable(field="rate_per_s", unit="requests/s", closed_loop=False)
CONCURRENCY = Variable(field="max_concurrency", unit="requests in flight", closed_loop=True)
USERS = Variable(field="users", unit="users", closed_loop=True)
SESSIONS = Variable(field="sessions_per_h", unit="sessions/h", closed_loop=False)
_KNOWN = {v.field: v for v in (RATE, SESSIONS, CONCURRENCY, USERS)}


def choose_variable(scenario: Scenario, wanted: str | None = None) -> Variable:
    """Return users or concurrency for a closed loop, else a rate; ``wanted`` overrides the choice.

    Raises `ScenarioError` if there is no such field, or nothing that the load can grow with.
    """
    workload = scenario.workload
    if wanted is not None:
        name = wanted.removeprefix("workload.")
        if name not in _KNOWN:
            raise ScenarioError(f"--vary {wanted}: cannot be varied; {nearest(name, _KNOWN)}")
        return _KNOWN[name]
    if workload.users is not None:
        return USERS
    if workload.sessions_per_h is not None:
        return SESSIONS
    # A trace or a preset brings its own arrivals; a generator without a rate has none.
    no_rate = workload.rate_per_s is None and workload.generator is not None
    if workload.max_concurrency is not None and no_rate:
        return CONCURRENCY
    if workload.generator is not None and workload.generator.arrivals == "all-at-once":
        raise ScenarioError(
            "workload.generator.arrivals: requests that arrive all at once have no rate to vary; "
            "give another arrival process, or --vary max_concurrency"
        )
    return RATE


_MISSES = 100  # misses of the SLO per run at its target, which the crossing is estimated from
_FEWEST, _MOST = 4_000, 50_000
_TURNOVERS = 20  # times that the requests in the system are replaced in a run
_FILL = 3  # times the number in the system that must leave before the system counts as full
_WARMUP = 0.1  # share of the counted requests, at least
_INDEPENDENT = 5_000  # requests of a run that count as independent of the next ones

BLOCKS = 10
"""Stretches of arrivals per run whose counts are kept apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """The requests of a run that count."""

    skip: int
    """Requests left out at the start, by arrival, while the system fills."""
    skip_end: int
    """Requests left out at the end, while a closed loop empties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What all runs of a search have in common."""

    variable: Variable
    attainment: float
    counted: int | None
    """Requests of a run that count; None: all that the trace, or the scenario's sizes, give."""
    in_system: float
    """Requests in an open-loop system near capacity, which a warm-up has to fill."""
    lengthens: bool
    """Whether runs grow with the requests in the system, so that these are replaced often."""
    fixed: bool
    """Whether the requests are given, not drawn, so that every seed has the same ones."""
    skips: bool
    """Whether runs exclude a warm-up from counting; False for traces and scenarios with their
    own."""
    slower: bool = False
    """Whether each run is repeated with a slower GPU, and with a slower host."""

    def counting(self, level: float) -> Counting:
        """Return which requests count at a load."""
        present = self._present(level)
        counted = self._counted(level)
        warmup = max(_FILL * present, _WARMUP * (counted or 0)) if self.skips else 0
        return Counting(
            skip=round(warmup),
            skip_end=round(level) if self.variable.closed_loop else 0,
        )

    def requests(self, level: float) -> int | None:
        """Return the requests of a run at a load, counted or not; None: the search does not set
        it."""
        counted, counting = self._counted(level), self.counting(level)
        return None if counted is None else counted + counting.skip + counting.skip_end

    @property
    def units(self) -> int:
        """Stretches of a run that count as independent runs, `BLOCKS` at most."""
        if self.fixed:  # the parts of a trace stand for other traces like it
            return BLOCKS
        if self.counted is None:
            return 1
        return max(n for n in (1, 2, 5, BLOCKS) if n == 1 or self.counted >= n * _INDEPENDENT)

    def level_of(self, scenario: Scenario) -> float:
        """Return the load of a run's scenario."""
        level = self.variable.value(scenario)
        assert level is not None
        return level

    def _present(self, level: float) -> float:
        return level if self.variable.closed_loop else self.in_system

    def _counted(self, level: float) -> int | None:
        if self.counted is None:
            return None
        settled = round(_TURNOVERS * self._present(level)) if self.lengthens else 0
        return max(self.counted, min(settled, _MOST))


def automatic_count(attainment: float) -> int:
    """Return the requests that give about a hundred misses at the target."""
    return max(_FEWEST, min(round(_MISSES / (1 - attainment)), _MOST))


def sizes(scenario: Scenario, level: float, requests: int | None) -> dict[str, Any]:
    """Return the workload fields that limit it to this many requests; {} to leave it as it is."""
    if requests is None:
        return {}
    if scenario.workload.classes:  # their sizes follow from their rates
        return {"duration_s": requests / level, "num_requests": None}
    return {"num_requests": requests, "duration_s": None}


def is_fixed(scenario: Scenario) -> bool:
    """Return whether the requests are given, not drawn, so that every seed has the same ones."""
    workload = scenario.workload
    sources: Sequence[Source] = workload.classes or [workload]
    return all(s.trace is not None and s.sessions_per_h is None for s in sources)


def has_own_size(scenario: Scenario) -> bool:
    """Return whether the workload sets its own number of requests, which the search cannot
    choose."""
    workload = scenario.workload
    if workload.trace is not None or workload.drift is not None:
        return True
    return any(
        c.trace is not None
        or c.drift is not None
        or c.num_requests is not None
        or c.duration_s is not None
        for c in workload.classes
    )
