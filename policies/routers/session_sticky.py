"""Routing of a session's requests to one replica, where earlier turns may still be cached."""

from policies.routers.least_loaded import LeastLoaded
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class SessionSticky:
    """Send a session's first turn to the least loaded replica and later turns after it.

    Later turns follow whatever the load. If the session's replica is down, the next turn chooses
    anew. Requests without a session go to the least loaded replica.
    """

    def __init__(self, context: RoutingContext) -> None:
        self._context = context
        self._least_loaded = LeastLoaded(context)
        self._homes: dict[int, int] = {}
        self._down: set[int] = set()

    def choose(self, request: Request) -> int:
        session = self._context.session(request)
        if session is None:
            return self._least_loaded.choose(request)
        home = self._homes.get(session)
        if home is None or home in self._down:
            home = self._homes[session] = self._least_loaded.choose(request)
        return home

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        self._least_loaded.publish(replica, load)

    def down(self, replica: int) -> None:
        self._down.add(replica)
        self._least_loaded.down(replica)

    def up(self, replica: int) -> None:
        self._down.discard(replica)
        self._least_loaded.up(replica)
