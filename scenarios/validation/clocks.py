"""Runs a list of steps through the engine's two clocks: the one place here that reads prices.

It is what `sim.engine.engine` does, without requests: plan and launch a step; once the pipeline is
full, or nothing is left to plan, block on the oldest in flight and apply its outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sim.engine.pipeline import launch_step
from sim.engine.throttle import Heat
from sim.fleet.cluster import PoolConfig
from sim.shape import StepShape


class PlannedStep(NamedTuple):
    """One step to run."""

    shape: StepShape
    running: int
    """Requests in the engine when it is planned: what scheduling takes depends on them."""


class StepTimes(NamedTuple):
    """When a step was planned, and when the host had read its outputs; ns from the first plan."""

    plan_ns: int
    read_ns: int


def run_steps(
    pool: PoolConfig, steps: Sequence[PlannedStep], heat_level: float = 0.0
) -> list[StepTimes]:
    """Run the steps one after another, from an idle engine until it is idle again.

    ``heat_level``: how far the device is throttled at the start. Raises ScenarioError for a step
    beyond the compiled limits.
    """
    cost, depth = pool.cost, 2 if pool.engine.async_scheduling else 1
    in_flight: deque[tuple[int, int, int]] = deque()  # plan, end on the GPU, update
    times: list[StepTimes] = []
    heat = Heat(cost.throttle, heat_level)
    now_ns = gpu_free_ns = 0

    def read_oldest(host_free_ns: int) -> int:
        plan_ns, end_ns, update_ns = in_flight.popleft()
        read_ns = max(host_free_ns, end_ns)
        times.append(StepTimes(plan_ns, read_ns))
        return read_ns + update_ns

    for step in steps:
        price = cost.price(step.shape)
        schedule_ns = cost.schedule_ns(step.running)
        launched_ns, gpu_free_ns, _ = launch_step(now_ns, gpu_free_ns, schedule_ns, price, heat)
        update_ns = cost.update_ns(step.shape.decode_seqs + step.shape.prefill_seqs)
        in_flight.append((now_ns, gpu_free_ns, update_ns))
        now_ns = launched_ns if len(in_flight) < depth else read_oldest(launched_ns)
    while in_flight:  # the scheduler is called, and finds nothing to plan
        now_ns = read_oldest(now_ns + cost.schedule_ns(steps[-1].running))
    return times
