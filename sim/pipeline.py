"""The engine's two clocks: when a step is planned, ends on the GPU, and becomes visible.

The host plans a step, spends ``schedule`` on it, then ``launch`` on preparing and launching it;
the GPU starts when it is free and the first kernel has arrived. With async scheduling (vLLM's
default) two steps are in flight: having launched a step the host blocks on the one before, spends
``update`` on its outputs, makes them visible, and plans the next at that same instant. Without,
it blocks on the step it has just launched. All times are integer nanoseconds.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sim.protocols import DecodeRun, StepPrice

Int64 = NDArray[np.int64]


class RunTimes(Protocol):
    """When the steps of a run are planned, end, and become visible.

    Plan ``i`` counts from 0; plan ``k`` is when the step after a run of ``k`` would be planned.
    Every planning instant after the first is also when the outputs of the oldest step in flight
    become visible: with async scheduling the step before, otherwise the same step.
    """

    def plan_ns(self, step: int) -> int:
        """When step ``step`` is planned, 0 to k."""
        ...

    def gpu_end_ns(self, steps: int) -> int:
        """When the first ``steps`` steps have ended on the GPU."""
        ...

    def first_plan_from(self, time_ns: int) -> int:
        """The first plan, not counting plan 0, at or after a time; the last one at the latest."""
        ...

    def visible_ns(self, steps: int) -> Int64:
        """Plans 1 to ``steps``: when outputs became visible, int64 ``[steps]``."""
        ...


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
    step_ns = gpu_part + (schedule_ns + update_ns)
    plans = np.concatenate([[now_ns], now_ns + step_ns.cumsum()])
    return _ListedTimes(plans, plans[1:] - update_ns)


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
    # Once the host has launched a step before the GPU is done with the one before, and every
    # step takes the GPU longer than the host, the GPU never waits again.
    delay_ns, launch_ns, tail_ns = price.launch_delay_ns, price.launch_ns, price.tail_ns
    planning_ns = max(first_host_ns[0], host_ns[0]) + max(delay_ns, launch_ns + tail_ns)
    gpu_bound = run.shortest_ns >= planning_ns + max(first_host_ns[1], host_ns[1])
    if gpu_bound and now_ns + planning_ns <= gpu_free_ns:
        return _GpuBoundTimes(now_ns, gpu_free_ns, first_host_ns[1], host_ns[1], cumulative_ns)

    plans, ends = [], []
    schedule_ns, update_ns = first_host_ns
    before_ns = 0
    for after_ns in cumulative_ns.tolist():
        plans.append(now_ns)
        launched_ns = now_ns + schedule_ns + launch_ns
        gpu_start_ns = max(gpu_free_ns, now_ns + schedule_ns + delay_ns)
        now_ns = max(launched_ns, gpu_free_ns) + update_ns
        gpu_free_ns = max(gpu_start_ns + after_ns - before_ns, launched_ns + tail_ns)
        ends.append(gpu_free_ns)
        schedule_ns, update_ns = host_ns
        before_ns = after_ns
        if gpu_bound and now_ns + planning_ns <= gpu_free_ns:
            break
    done = len(plans)
    rest = gpu_free_ns + cumulative_ns[done:] - before_ns
    plans.append(now_ns)
    if len(rest):
        plans.append(gpu_free_ns + update_ns)
    listed = np.array(plans, np.int64), np.array(ends, np.int64)
    return _ListedTimes(
        np.concatenate([listed[0], rest[:-1] + update_ns]), np.concatenate([listed[1], rest])
    )


class _ListedTimes:
    """Times of every step, listed."""

    __slots__ = ("_ends", "_plans")

    def __init__(self, plans: Int64, ends: Int64) -> None:
        self._plans = plans
        self._ends = ends

    def plan_ns(self, step: int) -> int:
        return int(self._plans[step])

    def gpu_end_ns(self, steps: int) -> int:
        return int(self._ends[steps - 1])

    def first_plan_from(self, time_ns: int) -> int:
        return 1 + int(self._plans[1:-1].searchsorted(time_ns))

    def visible_ns(self, steps: int) -> Int64:
        return self._plans[1 : steps + 1]


class _GpuBoundTimes:
    """The GPU runs without a gap; the host follows it, one update behind."""

    __slots__ = ("_cumulative_ns", "_first_plan_ns", "_free_ns", "_now_ns", "_plan_offset_ns")

    def __init__(
        self,
        now_ns: int,
        gpu_free_ns: int,
        first_update_ns: int,
        update_ns: int,
        cumulative_ns: Int64,
    ) -> None:
        self._now_ns = now_ns
        self._free_ns = gpu_free_ns
        self._first_plan_ns = gpu_free_ns + first_update_ns
        self._plan_offset_ns = gpu_free_ns + update_ns
        self._cumulative_ns = cumulative_ns

    def plan_ns(self, step: int) -> int:
        if step < 2:
            return self._first_plan_ns if step else self._now_ns
        return self._plan_offset_ns + self._cumulative_ns.item(step - 2)

    def gpu_end_ns(self, steps: int) -> int:
        return self._free_ns + self._cumulative_ns.item(steps - 1)

    def first_plan_from(self, time_ns: int) -> int:
        if time_ns <= self._first_plan_ns:
            return 1
        return 2 + int(self._cumulative_ns[:-2].searchsorted(time_ns - self._plan_offset_ns))

    def visible_ns(self, steps: int) -> Int64:
        visible_ns = np.empty(steps, np.int64)
        visible_ns[0] = self._first_plan_ns
        np.add(self._cumulative_ns[: steps - 1], self._plan_offset_ns, out=visible_ns[1:])
        return visible_ns
