"""vLLM's ``--scheduling-policy priority``: the lowest value first, ties by arrival."""

from sim.engine.state import EngineState
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.request import Request


def least_important(view: EngineState) -> Request:
    """Return the running request to preempt: the highest priority value, the latest among
    equals."""
    return max(view.running, key=_order)


class PriorityScheduler:
    """Schedule as `policies.fcfs` does, but admit and preempt by priority.

    Source: vLLM V1 ``Scheduler.schedule`` (0.25), ``SchedulingPolicy.PRIORITY``.
    """

    def waiting_order(self, request: Request) -> tuple[int, int]:
        return request.priority, request.arrival_ns

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        batch.add_running(victim=least_important)
        if not batch.has_preempted:
            batch.admit_waiting()
        return batch.plan(repeat=UNTIL_CHANGE)


def _order(request: Request) -> tuple[int, int, int]:
    return request.priority, request.arrival_ns, request.index
