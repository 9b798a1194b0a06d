"""How many replicas a wanted load needs, and whether a simulation of them agrees."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from scenarios.capacity.estimate import Estimate
from scenarios.capacity.runs import Runs
from scenarios.capacity.samples import Goal, Samples
from scenarios.layout import replica_gpus

_REPLICATIONS = 4
_MOST_CHECKS = 3  # beside the first


def wanted(
    runs: Runs, capacity: Estimate, load: float, *, goal: Goal, check: bool
) -> dict[str, Any]:
    """Replicas and GPUs for a load, if each replica adds the capacity of one.

    ``check``: simulate them at that load, and one more or fewer until the SLO tells them apart.
    """
    scenario = runs.scenario
    now, ranks = scenario.pool.replicas, replica_gpus(scenario)
    needed = max(1, math.ceil(load / (capacity.level / now) - 1e-9))
    surely = max(1, math.ceil(load / (capacity.low / now) - 1e-9)) if capacity.low > 0 else needed
    checks = _checks(runs, load, needed, goal) if check else []
    kept = [one["replicas"] for one in checks if one["kept"]]
    return {
        "level": load,
        "replicas": needed,
        "gpus": needed * ranks,
        "replicas_at_interval": surely,
        "assumes": "each replica adds the capacity of one: linear scaling behind the router",
        "simulated_replicas": min(kept, default=None),
        "checks": sorted(checks, key=lambda one: int(one["replicas"])),
    }


def _checks(runs: Runs, load: float, needed: int, goal: Goal) -> list[dict[str, Any]]:
    """Simulate the replicas needed, then fewer while they keep the SLO or more until they do."""
    checks = [_checked(runs, load, needed, goal)]
    step = -1 if checks[0]["kept"] else 1
    for replicas in range(needed + step, needed + (_MOST_CHECKS + 1) * step, step):
        if replicas < 1:
            break
        checks.append(_checked(runs, load, replicas, goal))
        if checks[-1]["kept"] != checks[0]["kept"]:
            break
    return checks


def _checked(runs: Runs, load: float, replicas: int, goal: Goal) -> dict[str, Any]:
    scenario = runs.scenario
    grown = replicas / scenario.pool.replicas
    pool = scenario.pool.model_copy(update={"replicas": replicas})
    plan = replace(runs.plan, in_system=runs.plan.in_system * grown)
    other = replace(runs, scenario=scenario.model_copy(update={"pool": pool}), plan=plan, facts={})
    samples = Samples(goal=goal, run=other)
    samples.add([load], min(_REPLICATIONS, goal.most))
    return {
        "replicas": replicas,
        "attainment": samples.attainment(load),
        "interval": list(samples.interval(load)),
        "stable": samples.is_stable(load),
        "kept": samples.keeps(load),
    }
