"""First look at a scenario: where it saturates, how many requests it holds, and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scenarios.experiments.capacity.question import SESSIONS, Variable, has_own_size, sizes
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError

_REQUESTS = 1_000
_OF_SATURATION = (0.12, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.2)
_IN_FLIGHT = (1, 4, 16, 64, 256)
_BUSY = 0.7  # share of saturation at which the requests in the system are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What is known before the search."""

    summary: dict[str, Any]
    source: str
    """The source of the requests."""
    notes: tuple[str, ...]
    levels: tuple[float, ...]
    """Loads to begin with."""
    saturation_level: float | None
    """Load at which the engines are estimated to saturate; None in a closed loop."""
    in_system: float
    """Requests in the system at a busy rate; 0 where it is not needed."""


def pilot(scenario: Scenario, variable: Variable) -> Pilot:
    """Simulate a short run. Raises `ScenarioError` if no request is served."""
    replicas = scenario.pool.replicas
    own = variable.value(scenario)
    if variable.closed_loop:
        result = _short(scenario, variable, own or replicas)
        levels = tuple(float(n * replicas) for n in _IN_FLIGHT)
        return _pilot(result, levels, None, 0.0)
    has_arrivals = scenario.workload.generator is None
    result = _short(scenario, variable, own or (None if has_arrivals else 1.0))
    limit = result.summary["saturation"]
    if limit is None:
        rejected = result.summary["requests"]["reject_reasons"]
        why = f": {next(iter(rejected))}" if rejected else ""
        raise ScenarioError(f"no request of this workload is served{why}; there is no capacity")
    saturation_per_s = limit["saturation_per_s"]
    in_system = 0.0
    if not has_own_size(scenario):
        busy = _short(scenario, variable, _BUSY * saturation_per_s)
        in_system = _BUSY * saturation_per_s * (busy.figure("e2e", "mean") or 0.0)
    limit_level = saturation_per_s / _requests_per_s(result, variable)
    levels = tuple(limit_level * share for share in _OF_SATURATION)
    return _pilot(result, levels, limit_level, in_system)


def _requests_per_s(result: RunResult, variable: Variable) -> float:
    """Return requests per second at a load of one, which differs from 1 if the load counts
    sessions."""
    session = result.log.table.session
    if variable is not SESSIONS or session is None:
        return 1.0
    return len(session) / len(set(session.tolist())) / 3600


def _short(scenario: Scenario, variable: Variable, level: float | None) -> RunResult:
    requests = None if has_own_size(scenario) else _REQUESTS
    if level is None:  # its own arrivals
        own = scenario.workload.model_copy(update=sizes(scenario, 1.0, requests))
        return simulate(scenario.model_copy(update={"workload": own}))
    return simulate(variable.at(scenario, level, **sizes(scenario, level, requests)))


def _pilot(
    result: RunResult,
    levels: tuple[float, ...],
    saturation_level: float | None,
    in_system: float,
) -> Pilot:
    table = result.log.table
    scaled = tuple(note for note in table.notes if not note.startswith(("rate scaled", "at most")))
    return Pilot(
        summary=result.summary,
        source=table.source,
        notes=(*result.build.notes, *scaled),
        levels=levels,
        saturation_level=saturation_level,
        in_system=in_system,
    )
