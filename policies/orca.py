"""Orca: iteration-level scheduling over memory reserved for whole sequences."""

from policies.reserving import Reserve, checked_reserve, reserved_tokens
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView


class Orca:
    """Admit in order of arrival at every step, each request once all memory it may need is free.

    Running requests are never preempted and no request starves. `policies.reserving` explains
    ``reserve`` and ``buddy``; Orca itself knows the most tokens a request may generate, which is
    ``oracle`` if answers have that length. Long prompts are still cut to the token budget.

    Source: Yu et al. 2022 (Orca, OSDI), section 4.2; the variants: Kwon et al. 2023, section 6.1.
    """

    def __init__(self, *, reserve: Reserve = "max", buddy: bool = False) -> None:
        checked_reserve(reserve)
        self._buddy = buddy
        self._reserve = reserve

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        batch.add_running()
        waiting = view.waiting
        while waiting:
            request = waiting.first()
            tokens = reserved_tokens(view, request, self._reserve, buddy=self._buddy)
            if not batch.admit(request, reserve_tokens=tokens):
                break
        return batch.plan(repeat=UNTIL_CHANGE)
