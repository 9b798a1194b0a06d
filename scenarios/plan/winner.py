"""The fleet that a plan recommends, as a scenario to run and change, and as servers' commands."""

from __future__ import annotations

from typing import Any

from scenarios.capacity.plan import sizes
from scenarios.dump import given_text
from scenarios.plan.finalists import Finalist
from scenarios.plan.question import Question
from scenarios.schema import Scenario
from scenarios.serve_command.inverse import commands_of

_LEFT_OUT = {"replications", "bands"}


def winner(one: Finalist, question: Question) -> dict[str, Any]:
    """``scenario``: YAML of the fleet under the planned load; ``commands``: of its engines."""
    scenario = planned(one, question)
    left_out = _LEFT_OUT if scenario.pools else _LEFT_OUT | {"pools"}
    return {
        "scenario": given_text(scenario, leave_out=left_out),
        "commands": commands_of(scenario),
    }


def planned(one: Finalist, question: Question) -> Scenario:
    """What was simulated for the fleet, as one run of it."""
    assert one.outcome.units is not None
    scenario = one.outcome.candidate.fleet(one.outcome.units)
    workload = sizes(scenario, question.level, question.plan.requests(question.level))
    return question.plan.variable.at(scenario, question.level, **workload)
