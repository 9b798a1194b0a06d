"""The fleet that a plan recommends, as a scenario to run and change, and as servers' commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodels.models.catalog import load_model
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
    return {
        "scenario": given_text(scenario, leave_out=_LEFT_OUT),
        "commands": commands_of(scenario),
    }


def planned(one: Finalist, question: Question) -> Scenario:
    """What was simulated for the fleet, as one run of it."""
    assert one.outcome.units is not None
    scenario = one.outcome.candidate.fleet(one.outcome.units)
    if not Path(scenario.model).exists():  # servers know a model by its full name
        scenario = scenario.model_copy(update={"model": load_model(scenario.model).name})
    workload = sizes(scenario, question.level, question.plan.requests(question.level))
    return question.plan.variable.at(scenario, question.level, **workload)
