"""The engine's two clocks: when a step is planned, ends on the GPU, and becomes visible.

The host plans a step, spends ``schedule`` on it, then ``launch`` on preparing and launching it;
the GPU starts when it is free and the first kernel has arrived. With async scheduling (vLLM's
default) two steps are in flight: having launched a step the host blocks on the one before, spends
``update`` on its outputs, makes them visible, and plans the next at that same instant. Without,
it blocks on the step it has just launched. All times are integer nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.protocols import DecodeRun, StepPrice

Int64 = NDArray[np.int64]


class RunTimes(NamedTuple):
    """Times of a run of equal steps."""

    plan_ns: Int64
    """``[k + 1]``: when each step is planned; the last is when the step after the run would be.

    Each planning instant after the first is also when the outputs of the oldest step in flight
    become visible: with async scheduling the step before, otherwise the same step.
    """
    gpu_end_ns: Int64
    """``[k]``: when each step ends on the GPU."""


def launch_step(
    now_ns: int, gpu_free_ns: int, schedule_ns: int, price: StepPrice
) -> tuple[int, int]:
    """One step planned now: (host free again, step ends on the GPU)."""
    scheduled_ns = now_ns + schedule_ns
    launched_ns = scheduled_ns + price.launch_ns
    gpu_start_ns = max(gpu_free_ns, scheduled_ns + price.launch_delay_ns)
    return launched_ns, max(gpu_start_ns + price.gpu_ns, launched_ns + price.tail_ns)


def run_sync(now_ns: int, schedule_ns: int, update_ns: int, run: DecodeRun) -> RunTimes:
    """A run without async scheduling: every step waits for the one before, from start to end."""
    price = run.first
    gpu_ns = np.diff(run.gpu_cumulative_ns, prepend=0)
    gpu_part = np.maximum(gpu_ns + price.launch_delay_ns, price.launch_ns + price.tail_ns)
    plan_ns = np.empty(len(gpu_ns) + 1, np.int64)
    plan_ns[0] = now_ns
    np.cumsum(gpu_part + (schedule_ns + update_ns), out=plan_ns[1:])
    plan_ns[1:] += now_ns
    return RunTimes(plan_ns, plan_ns[1:] - update_ns)


def run_async(
    now_ns: int,
    gpu_free_ns: int,
    first_host_ns: tuple[int, int],
    host_ns: tuple[int, int],
    run: DecodeRun,
) -> RunTimes:
    """A run with one step in flight before it, which ends at ``gpu_free_ns``.

    ``first_host_ns`` is (scheduling the run's first step, updating from the step before);
    ``host_ns`` is the same for the run's own steps.
    """
    price, cumulative_ns = run.first, run.gpu_cumulative_ns
    k = len(cumulative_ns)
    # Once the host has launched a step before the GPU is done with the one before, and every
    # step takes the GPU longer than the host, the GPU never waits again.
    delay_ns, launch_ns, tail_ns = price.launch_delay_ns, price.launch_ns, price.tail_ns
    planning_ns = max(first_host_ns[0], host_ns[0]) + max(delay_ns, launch_ns + tail_ns)
    gpu_bound = run.shortest_ns >= planning_ns + max(first_host_ns[1], host_ns[1])
    if gpu_bound and now_ns + planning_ns <= gpu_free_ns:
        return _gpu_bound_run(now_ns, gpu_free_ns, first_host_ns[1], host_ns[1], cumulative_ns)

    plan_ns, end_ns = np.empty(k + 1, np.int64), np.empty(k, np.int64)
    schedule_ns, update_ns = first_host_ns
    before_ns = 0
    for done, after_ns in enumerate(cumulative_ns.tolist()):
        if gpu_bound and now_ns + planning_ns <= gpu_free_ns:
            rest = _gpu_bound_run(
                now_ns, gpu_free_ns, update_ns, host_ns[1], cumulative_ns[done:] - before_ns
            )
            plan_ns[done:], end_ns[done:] = rest
            return RunTimes(plan_ns, end_ns)
        plan_ns[done] = now_ns
        launched_ns = now_ns + schedule_ns + launch_ns
        gpu_start_ns = max(gpu_free_ns, now_ns + schedule_ns + delay_ns)
        now_ns = max(launched_ns, gpu_free_ns) + update_ns
        gpu_free_ns = max(gpu_start_ns + after_ns - before_ns, launched_ns + tail_ns)
        end_ns[done] = gpu_free_ns
        schedule_ns, update_ns = host_ns
        before_ns = after_ns
    plan_ns[k] = now_ns
    return RunTimes(plan_ns, end_ns)


def _gpu_bound_run(
    now_ns: int, gpu_free_ns: int, first_update_ns: int, update_ns: int, cumulative_ns: Int64
) -> RunTimes:
    """The GPU runs without a gap; the host follows it, one update behind."""
    end_ns = cumulative_ns + gpu_free_ns
    plan_ns = np.empty(len(end_ns) + 1, np.int64)
    plan_ns[0] = now_ns
    plan_ns[1] = gpu_free_ns + first_update_ns
    np.add(end_ns[:-1], update_ns, out=plan_ns[2:])
    return RunTimes(plan_ns, end_ns)
