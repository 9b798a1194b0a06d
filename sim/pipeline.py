"""The engine's two clocks: when a step is planned, ends on the GPU, and becomes visible.

The host plans a step, spends ``schedule`` on it, then ``launch`` on preparing and launching it;
the GPU starts when it is free and the first kernel has arrived. With async scheduling (vLLM's
default) two steps are in flight: having launched a step the host blocks on the one before, spends
``update`` on its outputs, makes them visible, and plans the next at that same instant. Without,
it blocks on the step it has just launched. All times are integer nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from sim.protocols import DecodeRun, StepPrice


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

    def visible_ns(self, steps: int) -> list[int]:
        """Plans 1 to ``steps``: when outputs became visible."""
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
    plans, ends = [now_ns], []
    before_ns = 0
    for after_ns in run.gpu_cumulative_ns:
        price = run.first._replace(gpu_ns=after_ns - before_ns)
        _, end_ns = launch_step(plans[-1], 0, schedule_ns, price)
        ends.append(end_ns)
        plans.append(end_ns + update_ns)
        before_ns = after_ns
    return _ListedTimes(plans, ends)


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
    schedule_ns, update_ns = first_host_ns
    # Once the host has launched a step before the GPU is done with the one before, and every
    # step takes the GPU longer than the host, the GPU never waits again.
    planning_ns = max(schedule_ns, host_ns[0])
    planning_ns += max(price.launch_delay_ns, price.launch_ns + price.tail_ns)
    gpu_bound = run.shortest_ns >= planning_ns + max(update_ns, host_ns[1])
    if gpu_bound and now_ns + planning_ns <= gpu_free_ns:
        return _GpuBoundTimes(now_ns, gpu_free_ns, update_ns, host_ns[1], cumulative_ns)

    plans, ends = [now_ns], []
    before_ns = 0
    for after_ns in cumulative_ns:
        step = price._replace(gpu_ns=after_ns - before_ns)
        launched_ns, end_ns = launch_step(now_ns, gpu_free_ns, schedule_ns, step)
        now_ns = max(launched_ns, gpu_free_ns) + update_ns
        plans.append(now_ns)
        ends.append(end_ns)
        gpu_free_ns, before_ns = end_ns, after_ns
        schedule_ns, update_ns = host_ns
    return _ListedTimes(plans, ends)


class _ListedTimes:
    """Times of every step, listed."""

    __slots__ = ("_ends", "_plans")

    def __init__(self, plans: list[int], ends: list[int]) -> None:
        self._plans = plans
        self._ends = ends

    def plan_ns(self, step: int) -> int:
        return self._plans[step]

    def gpu_end_ns(self, steps: int) -> int:
        return self._ends[steps - 1]

    def first_plan_from(self, time_ns: int) -> int:
        return bisect_left(self._plans, time_ns, 1, len(self._ends))

    def visible_ns(self, steps: int) -> list[int]:
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
        cumulative_ns: list[int],
    ) -> None:
        self._now_ns = now_ns
        self._free_ns = gpu_free_ns
        self._first_plan_ns = gpu_free_ns + first_update_ns
        self._plan_offset_ns = gpu_free_ns + update_ns
        self._cumulative_ns = cumulative_ns

    def plan_ns(self, step: int) -> int:
        if step < 2:
            return self._first_plan_ns if step else self._now_ns
        return self._plan_offset_ns + self._cumulative_ns[step - 2]

    def gpu_end_ns(self, steps: int) -> int:
        return self._free_ns + self._cumulative_ns[steps - 1]

    def first_plan_from(self, time_ns: int) -> int:
        cumulative_ns = self._cumulative_ns
        if time_ns <= self._first_plan_ns or len(cumulative_ns) < 2:
            return 1
        last = len(cumulative_ns) - 2
        return 2 + bisect_left(cumulative_ns, time_ns - self._plan_offset_ns, 0, last)

    def visible_ns(self, steps: int) -> list[int]:
        if not steps:
            return []
        offset_ns = self._plan_offset_ns
        return [self._first_plan_ns, *[offset_ns + c for c in self._cumulative_ns[: steps - 1]]]
