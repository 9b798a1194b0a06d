"""Sarathi-Serve: stall-free batches of bounded size."""

from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.errors import ScenarioError


class Sarathi:
    """Batch all decodes, then begun prompts, then new ones, up to ``chunk_tokens`` per step.

    The bound keeps the time between tokens even: prompts get only what the decodes leave of it.
    Blocks for a whole prompt are held from its admission on. No request starves.

    Source: Agrawal et al. 2024 (Sarathi-Serve, OSDI), algorithm 3.
    """

    def __init__(self, *, chunk_tokens: int = 512) -> None:
        if chunk_tokens < 1:
            raise ScenarioError(f"chunk_tokens is {chunk_tokens}; it must be at least 1")
        self._chunk_tokens = chunk_tokens

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        batch.add_decodes()
        for request in list(view.prefilling):
            room = self._chunk_tokens - batch.num_tokens
            if room <= 0 or not batch.add(request, room):
                break
        waiting = view.waiting
        while waiting and not batch.has_preempted:
            room = self._chunk_tokens - batch.num_tokens
            request = waiting.first()
            tokens = request.num_target_tokens
            if room <= 0 or not batch.admit(request, room, reserve_tokens=tokens):
                break
        return batch.plan(repeat=UNTIL_CHANGE)
