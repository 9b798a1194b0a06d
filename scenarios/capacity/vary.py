"""What the search varies: the arrival rate of an open loop, or how many are served at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scenarios.explain import nearest
from scenarios.schema import Scenario
from sim.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A field of the workload that says how much load there is."""

    field: str
    unit: str
    closed_loop: bool
    """Whole numbers, and no queue that grows without bound."""

    def at(self, scenario: Scenario, level: float, **workload: Any) -> Scenario:
        """The scenario at a load; ``workload``: other fields of its workload to change."""
        value = round(level) if self.closed_loop else level
        changed = scenario.workload.model_copy(update={self.field: value, **workload})
        return scenario.model_copy(update={"workload": changed})

    def value(self, scenario: Scenario) -> float | None:
        """The load the scenario itself has, where it says so."""
        given: float | None = getattr(scenario.workload, self.field)
        return given


RATE = Variable(field="rate_per_s", unit="requests/s", closed_loop=False)
CONCURRENCY = Variable(field="max_concurrency", unit="requests in flight", closed_loop=True)
USERS = Variable(field="users", unit="users", closed_loop=True)
SESSIONS = Variable(field="sessions_per_h", unit="sessions/h", closed_loop=False)
_KNOWN = {v.field: v for v in (RATE, SESSIONS, CONCURRENCY, USERS)}


def choose_variable(scenario: Scenario, wanted: str | None = None) -> Variable:
    """The users or the concurrency of a closed loop, else a rate; ``wanted`` overrides.

    Raises ScenarioError where there is no such field, or nothing that the load can grow with.
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
    # A trace or a preset brings arrivals of its own; a generator without a rate has none.
    no_rate = workload.rate_per_s is None and workload.generator is not None
    if workload.max_concurrency is not None and no_rate:
        return CONCURRENCY
    if workload.generator is not None and workload.generator.arrivals == "all-at-once":
        raise ScenarioError(
            "workload.generator.arrivals: requests that arrive all at once have no rate to vary; "
            "give another arrival process, or --vary max_concurrency"
        )
    return RATE
