"""Prefill-prioritising continuous batching, as vLLM did it before chunked prefill (V0)."""

from sim.engine.batch import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView


def prefill_first(view: EngineView) -> Plan:
    """A step is either prefills or decodes: while anybody can be admitted, decodes stand still.

    Lower TTFT than `policies.fcfs`, at the price of long gaps between tokens. A prompt longer
    than the budget is still cut into chunks.

    Source: Kwon et al. 2023 (vLLM), as described by Agrawal et al. 2024 (Sarathi-Serve), section 3.
    """
    batch = view.new_batch()
    for request in list(view.prefilling):
        batch.add(request)
    batch.admit_waiting()
    if not batch.num_prefills:
        batch.add_running()
    return batch.plan(repeat=UNTIL_CHANGE)
