"""What a scheduler is, and what it sees of its engine."""

from __future__ import annotations

from typing import Protocol

from sim.engine.batch import BatchBuilder, Plan
from sim.engine.state import EngineState


class EngineView(EngineState):
    """What a scheduler reads: the engine's state. It changes it only through ``new_batch()``."""

    def new_batch(self) -> BatchBuilder:
        """Start the next step."""
        self.kv.new_step()
        self.decode_group.begin_step()
        return BatchBuilder(self)


class Scheduler(Protocol):
    """Chooses what the next step computes. A function will do; see `policies`.

    If it has a method ``waiting_order(request)``, its engine keeps the waiting queue in the order
    of that key; otherwise it is first come, first served. If it has a method ``attach(view)``, it
    is called once, before anything arrives: there it may read the configuration, put a queue of
    its own in ``view.waiting`` (`sim.engine.waiting.WaitingQueue`), or follow who decodes
    (``view.decode_group.observer``).

    What it computes at a call must not grow with the number waiting: ``view.waiting.first()`` and
    ``BatchBuilder.admit_waiting`` do not. A plan that stands until something changes says so; one
    that looks at the clock or at tokens served says until when (`BatchBuilder.plan`).
    """

    def __call__(self, view: EngineView, /) -> Plan:
        """Order and preempt through ``view.new_batch()``; return its plan."""
        ...
