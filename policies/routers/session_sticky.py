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

    def choose(self, request: Request) -> int:
        """The session's replica; requests without a session go to the least loaded."""
        session = self._context.session(request)
        if session is None:
            return self._least_loaded.choose(request)
        home = self._homes.get(session)
        if home is None:
            home = self._homes[session] = self._least_loaded.choose(request)
        return home

    def publish(self, replica: int, load: ReplicaLoad) -> None:
        """Note a replica's new load."""
        self._least_loaded.publish(replica, load)
