"""What a scheduler is, and what it sees of its engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sim.engine.batch import BatchBuilder
from sim.engine.state import EngineState
from sim.engine.step import Plan


class EngineView(EngineState):
    """The engine's state as a scheduler sees it. A scheduler changes it only through
    ``new_batch()``."""

    def new_batch(self) -> BatchBuilder:
        """Start building the next step."""
        self.kv.new_step()
        self.decode_group.begin_step()
        return BatchBuilder(self)


class Scheduler(Protocol):
    """Chooses what the next step computes. A plain function will do; see `policies`.

    With an optional method ``waiting_order(request)``, the engine keeps the waiting queue in the
    order of that key; otherwise it is first come, first served. An optional method ``attach(view)``
    is called once, before anything arrives: it may read the configuration, put a queue of its own
    into ``view.waiting`` (`sim.engine.waiting.WaitingQueue`), or observe which requests decode
    (``view.decode_group.observers``).

    The work of one call must not grow with the number of waiting requests; that of
    ``view.waiting.first()`` and ``BatchBuilder.admit_waiting`` does not. A plan that stands until
    something changes says so; one that depends on the clock or on tokens served says until when
    (`BatchBuilder.plan`).
    """

    def __call__(self, view: EngineView, /) -> Plan:
        """Order and preempt through ``view.new_batch()``, and return its plan."""
        ...


class Feature(Protocol):
    """An optional part of an engine (`sim.engine.hooks`)."""

    def start(self, view: EngineView, wake: Callable[[], None], /) -> None:
        """Take part in a new process of the engine, whose queues are empty, by appending to
        ``view.hooks``. ``wake`` makes the engine plan again after a change from outside."""
        ...
