"""The engine's two clocks: when a step is planned, ends on the GPU, and becomes visible.

The host plans a step (``schedule``), then prepares and launches it (``launch``); the GPU starts
when it is free and the first kernel has arrived. With async scheduling (vLLM's default) two steps
are in flight: after launching a step the host blocks on the one before, processes its outputs
(``update``), makes them visible, and plans the next step at that same instant. Without async
scheduling it blocks on the step it has just launched. All times are integer nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left

from sim.protocols import DecodeRun, StepPrice
from sim.throttle import Heat


class RunTimes:
    """When the steps of a run are planned, end, and become visible.

    Plans count from 0; plan ``k`` is when the step after a run of ``k`` steps would be planned.
    Every plan after the first is also when the outputs of the oldest step in flight become visible:
    with async scheduling those of the step before, otherwise those of the same step.

    The first steps are listed. If the GPU runs without a gap from then on, the rest follow from its
    cumulative time: each plan comes one update after the end of the step before.
    """

    __slots__ = ("_cumulative_ns", "_end_offset_ns", "_ends", "_plan_offset_ns", "_plans")

    def __init__(
        self,
        plans: list[int],
        ends: list[int],
        cumulative_ns: list[int],
        end_offset_ns: int = 0,
        update_ns: int = 0,
    ) -> None:
        """``plans`` and ``ends`` of the listed steps, plans up to the one after the last.

        If the run has more steps, ``plans`` has one more entry, and step ``i`` ends at
        ``end_offset_ns + cumulative_ns[i]``.
        """
        self._plans = plans
        self._ends = ends
        self._cumulative_ns = cumulative_ns
        self._end_offset_ns = end_offset_ns
        self._plan_offset_ns = end_offset_ns + update_ns

    def plan_ns(self, step: int) -> int:
        """Return when step ``step`` is planned, 0 to k."""
        if step < len(self._plans):
            return self._plans[step]
        return self._plan_offset_ns + self._cumulative_ns[step - 2]

    def gpu_end_ns(self, steps: int) -> int:
        """Return when the first ``steps`` steps have ended on the GPU."""
        if steps <= len(self._ends):
            return self._ends[steps - 1]
        return self._end_offset_ns + self._cumulative_ns[steps - 1]

    def first_plan_from(self, time_ns: int) -> int:
        """Return the first plan at or after a time, from plan 1 on; the last plan at the latest."""
        plans, steps = self._plans, len(self._cumulative_ns)
        listed = min(len(plans) - 1, steps)
        if time_ns <= plans[listed] or listed == steps:
            return bisect_left(plans, time_ns, 1, listed)
        offset_ns = time_ns - self._plan_offset_ns
        return 2 + bisect_left(self._cumulative_ns, offset_ns, listed - 1, steps - 2)

    def visible_ns(self, steps: int) -> list[int]:
        """Return the times of plans 1 to ``steps``, at which outputs became visible."""
        listed = self._plans[1 : steps + 1]
        offset_ns = self._plan_offset_ns
        rest = self._cumulative_ns[len(listed) - 1 : steps - 1]
        return listed + [offset_ns + c for c in rest] if len(listed) < steps else listed


def launch_step(
    now_ns: int,
    gpu_free_ns: int,
    schedule_ns: int,
    price: StepPrice,
    heat: Heat,
    wait_ns: int = 0,
) -> tuple[int, int, int]:
    """Launch one step planned now; return (host free again, GPU end, GPU time).

    The host schedules for ``schedule_ns``, then launches for ``price.launch_ns``; the first kernel
    reaches the GPU ``price.launch_delay_ns`` after scheduling, and the last ends at least
    ``price.tail_ns`` after the launch. ``heat`` slows the step on a throttled device. Its
    kernels wait ``wait_ns`` more, for what must be moved to the device first.
    """
    scheduled_ns = now_ns + schedule_ns
    launched_ns = scheduled_ns + price.launch_ns
    gpu_start_ns = max(gpu_free_ns, scheduled_ns + price.launch_delay_ns) + wait_ns
    gpu_ns = price.gpu_ns + heat.stretch_ns(gpu_start_ns, price.gpu_ns, price.compute_ns)
    return launched_ns, max(gpu_start_ns + gpu_ns, launched_ns + price.tail_ns), gpu_ns


def run_sync(
    now_ns: int, gpu_free_ns: int, schedule_ns: int, update_ns: int, run: DecodeRun
) -> RunTimes:
    """Time the steps of a jump without async scheduling: every step waits for the one before.

    The first step also waits until the GPU has finished what a crashed process had launched.
    """
    price, cumulative_ns = run.first, run.gpu_cumulative_ns
    plans: list[int] = [now_ns]
    ends: list[int] = []
    wait_ns = max(gpu_free_ns - (now_ns + schedule_ns + price.launch_delay_ns), 0)
    before_ns = -wait_ns  # so that the first step takes that much longer
    for after_ns in cumulative_ns:
        gpu_ns = max(after_ns - before_ns + price.launch_delay_ns, price.launch_ns + price.tail_ns)
        ends.append(plans[-1] + schedule_ns + gpu_ns)
        plans.append(ends[-1] + update_ns)
        before_ns = after_ns
    return RunTimes(plans, ends, cumulative_ns)


def run_async(
    now_ns: int,
    gpu_free_ns: int,
    first_host_ns: tuple[int, int],
    host_ns: tuple[int, int],
    run: DecodeRun,
) -> RunTimes:
    """Time the steps of a jump as stepping with two steps in flight would, one by one.

    Steps are listed until the GPU no longer waits between them; the rest follow from the cumulative
    GPU time. The step before ends at ``gpu_free_ns``. ``first_host_ns`` is (schedule time of the
    first step, update time of the step before); ``host_ns`` is the same pair for the run's own
    steps.
    """
    price, cumulative_ns = run.first, run.gpu_cumulative_ns
    delay_ns, launch_ns, tail_ns = price.launch_delay_ns, price.launch_ns, price.tail_ns
    schedule_ns, update_ns = first_host_ns
    # Once the host launches a step before the GPU is done with the one before, and every step takes
    # the GPU longer than the host, the GPU never waits again.
    planning_ns = max(schedule_ns, host_ns[0]) + max(delay_ns, launch_ns + tail_ns)
    gpu_bound = run.shortest_ns >= planning_ns + max(update_ns, host_ns[1])
    plans: list[int] = [now_ns]
    ends: list[int] = []
    before_ns = 0
    for after_ns in cumulative_ns:
        if gpu_bound and now_ns + planning_ns <= gpu_free_ns:
            plans.append(gpu_free_ns + update_ns)
            return RunTimes(plans, ends, cumulative_ns, gpu_free_ns - before_ns, host_ns[1])
        launched_ns = now_ns + schedule_ns + launch_ns
        gpu_start_ns = max(gpu_free_ns, now_ns + schedule_ns + delay_ns)
        now_ns = max(launched_ns, gpu_free_ns) + update_ns
        gpu_free_ns = max(gpu_start_ns + after_ns - before_ns, launched_ns + tail_ns)
        plans.append(now_ns)
        ends.append(gpu_free_ns)
        schedule_ns, update_ns = host_ns
        before_ns = after_ns
    return RunTimes(plans, ends, cumulative_ns)
