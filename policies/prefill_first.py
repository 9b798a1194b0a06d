"""Continuous batching that prefills first, as vLLM did before chunked prefill (V0)."""

from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView


def prefill_first(view: EngineView) -> Plan:
    """Make each step all prefills or all decodes; decodes stall while any request can be admitted.

    This gives a lower TTFT than `policies.fcfs`, at the price of long gaps between tokens. A prompt
    longer than the budget is still cut into chunks.

    Source: Kwon et al. 2023 (vLLM), as described by Agrawal et al. 2024 (Sarathi-Serve), section 3.
    """
    batch = view.new_batch()
    for request in list(view.prefilling):
        batch.add(request)
    batch.admit_waiting()
    if not batch.num_prefills:
        batch.add_running()
    return batch.plan(repeat=UNTIL_CHANGE)
