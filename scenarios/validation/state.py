"""How many requests ran over a serving run, by the same definition on both sides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.fits.engine_log import StepRows
from sim.fleet.cluster import RunLog


class State(NamedTuple):
    """Requests in the running list, after scheduling."""

    mean_running: float
    """Time-weighted from when the run is scored to the last output; an idle engine runs none."""
    max_running: float


def measured_state(steps: StepRows, from_s: float = 0.0) -> State:
    """Of a recorded run with at least one step."""
    next_plan_s = np.append(steps.t_sched[1:], np.inf)
    until_s = np.minimum(next_plan_s, steps.t_upd_end)
    return _state(steps.running, steps.t_sched, until_s, from_s)


def simulated_state(log: RunLog, from_s: float = 0.0) -> State:
    """Of a simulated run of one engine."""
    steps = log.steps[0]
    plan_s = steps.column("plan_ns") / 1e9
    until_s = np.minimum(np.append(plan_s[1:], np.inf), steps.row_visible_ns() / 1e9)
    return _state(steps.column("running"), plan_s, until_s, from_s)


def _state(
    running: NDArray[np.int64],
    start_s: NDArray[np.float64],
    until_s: NDArray[np.float64],
    from_s: float,
) -> State:
    held_s = np.maximum(until_s - np.maximum(start_s, from_s), 0)
    end_s = float(until_s.max(initial=from_s))
    mean = float((running * held_s).sum() / (end_s - from_s)) if end_s > from_s else 0.0
    return State(mean, float(running[held_s > 0].max(initial=0)))
