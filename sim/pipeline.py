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

from sim.protocols import StepPrice

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


def run_sync(
    now_ns: int, schedule_ns: int, update_ns: int, price: StepPrice, gpu_ns: Int64
) -> RunTimes:
    """A run without async scheduling: every step waits for the one before, from start to end."""
    gpu_part = np.maximum(gpu_ns + price.launch_delay_ns, price.launch_ns + price.tail_ns)
    step_ns = gpu_part + (schedule_ns + update_ns)
    plan_ns = np.empty(len(gpu_ns) + 1, np.int64)
    plan_ns[0] = now_ns
    np.cumsum(step_ns, out=plan_ns[1:])
    plan_ns[1:] += now_ns
    return RunTimes(plan_ns, plan_ns[1:] - update_ns)


def run_async(
    now_ns: int,
    gpu_free_ns: int,
    first_host_ns: tuple[int, int],
    host_ns: tuple[int, int],
    price: StepPrice,
    gpu_ns: Int64,
) -> RunTimes:
    """A run with one step in flight before it, which ends at ``gpu_free_ns``.

    ``first_host_ns`` is (scheduling the run's first step, updating from the step before);
    ``host_ns`` is the same for the run's own steps.
    """
    k = len(gpu_ns)
    plan_ns = np.empty(k + 1, np.int64)
    end_ns = np.empty(k, np.int64)
    # Once the host has launched a step before the GPU is done with the one before, and every
    # step takes the GPU longer than the host, the GPU never waits again.
    delay_ns, launch_ns, tail_ns = price.launch_delay_ns, price.launch_ns, price.tail_ns
    longest_host_ns = (
        max(first_host_ns[0], host_ns[0])
        + max(delay_ns, launch_ns + tail_ns)
        + max(first_host_ns[1], host_ns[1])
    )
    gpu_bound = int(gpu_ns.min()) >= longest_host_ns
    done = 0
    schedule_ns, update_ns = first_host_ns
    while done < k and not (gpu_bound and now_ns + longest_host_ns <= gpu_free_ns):
        step_ns = gpu_ns.item(done)
        plan_ns[done] = now_ns
        launched_ns = now_ns + schedule_ns + launch_ns
        gpu_start_ns = max(gpu_free_ns, now_ns + schedule_ns + delay_ns)
        now_ns = max(launched_ns, gpu_free_ns) + update_ns
        gpu_free_ns = max(gpu_start_ns + step_ns, launched_ns + tail_ns)
        end_ns[done] = gpu_free_ns
        schedule_ns, update_ns = host_ns
        done += 1
    plan_ns[done] = now_ns
    if done < k:
        np.cumsum(gpu_ns[done:], out=end_ns[done:])
        end_ns[done:] += gpu_free_ns
        plan_ns[done + 1] = gpu_free_ns + update_ns
        plan_ns[done + 2 :] = end_ns[done:-1] + host_ns[1]
    return RunTimes(plan_ns, end_ns)
