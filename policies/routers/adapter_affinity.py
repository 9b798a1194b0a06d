"""Routing of a LoRA adapter's requests to replicas that have it in device memory."""

from __future__ import annotations

from policies.routers.least_loaded import LeastLoaded
from policies.routers.load_bound import LoadBound
from sim.errors import ScenarioError
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class AdapterAffinity:
    """Choose the least loaded replica that was sent the adapter lately and has room; else the least
    loaded of all.

    A replica is taken to hold the last ``slots`` adapters that it was sent, its engine's
    ``max_loras``. Requests for the base model go to the least loaded replica.
    """

    def __init__(
        self, context: RoutingContext, *, slots: int = 8, load_bound: float | None = 1.25
    ) -> None:
        if slots < 1:
            raise ScenarioError(f"slots is {slots}; a replica holds at least 1 adapter")
        self._context = context
        self._slots = slots
        self._bound = LoadBound(context.num_replicas, load_bound)
        self._least_loaded = LeastLoaded(context)
        # By replica, the adapter sent last at the end.
        self._held: list[dict[int, None]] = [{} for _ in range(context.num_replicas)]

    def choose(self, request: Request) -> int:
        adapter = self._context.extra("adapter", request)
        if adapter is None or adapter < 0:
            return self._least_loaded.choose(request)
        homes = [
            replica
            for replica, held in enumerate(self._held)
            if adapter in held and self._bound.has_room(replica)
        ]
        chosen = min(homes, key=self._least_loaded.score, default=None)
        if chosen is None:
            chosen = self._least_loaded.choose(request)
        held = self._held[chosen]
        held.pop(adapter, None)
        held[adapter] = None
        if len(held) > self._slots:
            del held[next(iter(held))]
        return chosen

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._bound.publish(replica, load)
        self._least_loaded.publish(replica, load)

    def down(self, replica: int) -> None:
        self._held[replica].clear()
        self._bound.down(replica)
        self._least_loaded.down(replica)

    def up(self, replica: int) -> None:
        self._bound.up(replica)
        self._least_loaded.up(replica)
