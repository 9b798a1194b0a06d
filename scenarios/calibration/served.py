"""What served each family of a run's operators, and the address of all it was priced by."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from costmodels.drafting.speculative_cost import SpeculativeStepCost
from costmodels.steps.explain import constants_label, family_labels
from costmodels.steps.group_cost import GroupStepCost

if TYPE_CHECKING:
    from scenarios.build import Build


def operator_facts(build: Build) -> list[dict[str, Any]]:
    """Each family of the model's operators: source, evidence label, tables, why not another."""
    cost = build.cost.plain if isinstance(build.cost, SpeculativeStepCost) else build.cost
    kernels = (cost.rank if isinstance(cost, GroupStepCost) else cost).kernels
    labels = family_labels(kernels)
    return [
        {**one.facts(), "label": labels.get(one.family) or constants_label(kernels, one.family)}
        for one in build.operators.families
    ]


def calibration_address(build: Build) -> str:
    """SHA-256 of every number that prices a step: tables, constants, the device, host terms."""
    operators = build.operators
    content = {
        "operators": operators.address,
        "efficiency": asdict(operators.efficiency),
        "constants": {name: asdict(one) for name, one in operators.constants.items()},
        "gpu": asdict(build.gpu),
        "profile": asdict(build.profile),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
