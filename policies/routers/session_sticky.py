"""A session's requests to one replica, where its earlier turns may still be cached."""

from policies.routers.least_loaded import LeastLoaded
from sim.protocols import ReplicaLoad, RoutingContext
from sim.request import Request


class SessionSticky:
    """The first turn goes to the least loaded replica, later ones after it, whatever the load."""

    def __init__(self, context: RoutingContext) -> None:
        self._context = context
        self._least_loaded = LeastLoaded(context)
        self._homes: dict[int, int] = {}
        self._down: set[int] = set()

    def choose(self, request: Request) -> int:
        """The session's replica; requests without a session go to the least loaded."""
        session = self._context.session(request)
        if session is None:
            return self._least_loaded.choose(request)
        home = self._homes.get(session)
        if home is None or home in self._down:
            home = self._homes[session] = self._least_loaded.choose(request)
        return home

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note a replica's new load."""
        self._least_loaded.publish(replica, load)

    def down(self, replica: int) -> None:
        """Its sessions find another home when they come again."""
        self._down.add(replica)
        self._least_loaded.down(replica)

    def up(self, replica: int) -> None:
        """It is a home again for those that come to it."""
        self._down.discard(replica)
        self._least_loaded.up(replica)
