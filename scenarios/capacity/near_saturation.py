"""Near saturation a queue forgets slowly: the same search with longer runs, around its answer."""

from __future__ import annotations

from dataclasses import replace

from scenarios.capacity.pilot import Pilot
from scenarios.capacity.plan import RunPlan
from scenarios.capacity.search import Found

LEAST = 4
"""Replications near the crossing, each as long as several of the first search."""

_CLOSE = 0.85  # of saturation
_LONGER = 4  # times
_AROUND = (0.88, 0.94, 1.0, 1.06, 1.15)


def is_slow(found: Found, pilot: Pilot) -> bool:
    """Whether the answer lies where runs of the usual length have not settled."""
    if found.capacity is None or pilot.saturation_level is None:
        return False
    return found.limit == "stability" or found.capacity.level > _CLOSE * pilot.saturation_level


def longer(plan: RunPlan) -> RunPlan:
    """The same with longer runs and warm-ups."""
    assert plan.counted is not None
    return replace(plan, counted=_LONGER * plan.counted)


def around(found: Found) -> list[float]:
    """Loads to begin with, around the first answer."""
    assert found.capacity is not None
    return [found.capacity.level * share for share in _AROUND]
