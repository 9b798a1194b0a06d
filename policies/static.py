"""Request-level batching, as FasterTransformer under a serving system does it."""

from policies.reserving import Reserve, checked_reserve, reserved_tokens
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.errors import ScenarioError
from sim.request import Gang


class Static:
    """Admit a whole batch, and no other request until its longest member is done.

    A batch has up to ``batch_size`` requests in order of arrival, as far as their reservations fit.
    All prompts are computed before the first token is decoded. Finished members hold their memory
    and are answered with the last one; they cost no compute (padding would). No request starves.

    Source: Yu et al. 2022 (Orca, OSDI), section 3.
    """

    def __init__(self, *, batch_size: int = 32, reserve: Reserve = "max") -> None:
        if batch_size < 1:
            raise ScenarioError(f"batch_size is {batch_size}; it must be at least 1")
        checked_reserve(reserve)
        self._batch_size = batch_size
        self._reserve = reserve

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        if view.running:
            for request in list(view.prefilling):
                batch.add(request)
        else:
            gang = Gang()
            while view.waiting and gang.members < self._batch_size:
                request = view.waiting.first()
                tokens = reserved_tokens(view, request, self._reserve)
                now = None if batch.token_budget else 0  # the prompt is computed in a later step
                if not batch.admit(request, now, reserve_tokens=tokens, gang=gang):
                    break
        if not batch.num_prefills:
            batch.add_running()
        return batch.plan(repeat=UNTIL_CHANGE)
