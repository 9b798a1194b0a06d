"""vLLM V1's default scheduler: running requests first, then waiting ones in order of arrival."""

from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView


def fcfs(view: EngineView) -> Plan:
    """Continuous batching with chunked prefill, first come, first served.

    Every running request gets its tokens: a decode one, a partly computed prompt the rest of the
    budget. What is left goes to waiting requests in order, the last of them cut to fit; the first
    that does not fit ends the step, and none skips ahead. A step that preempted admits none.

    Source: vLLM V1 ``Scheduler.schedule`` (0.25).
    """
    batch = view.new_batch()
    batch.add_running()
    if not batch.has_preempted:
        batch.admit_waiting()
    return batch.plan(repeat=UNTIL_CHANGE)  # lets the engine jump over equal steps
