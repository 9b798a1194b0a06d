"""The decode side of a handover: requests whose KV was computed by another engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.engine.view import EngineView
from sim.request import Request, Status


class ArrivingKV:
    """First come, first served: a request gets blocks, then its KV arrives, then it decodes."""

    def __init__(self, view: EngineView, on_blocks: Callable[[Request], None]) -> None:
        """``on_blocks`` is called with every request that was given its blocks."""
        self._view = view
        self.on_blocks = on_blocks
        self.waiting: deque[Request] = deque()
        """Requests without blocks yet."""
        self._receiving = 0
        self._ready: list[Request] = []

    @property
    def in_place(self) -> int:
        """Return the requests that have blocks but do not decode yet."""
        return self._receiving + len(self._ready)

    def __bool__(self) -> bool:
        return bool(self.waiting or self._receiving or self._ready)

    def ready(self, request: Request) -> None:
        """All KV of the request has arrived."""
        self._receiving -= 1
        self._ready.append(request)

    def drop(self, request: Request) -> bool:
        """Drop a cancelled request; returns False if it is not here (any more)."""
        if request.status is Status.TRANSFERRING:
            if request in self._ready:
                self._ready.remove(request)
            else:
                self._receiving -= 1
            self._view.kv.release(request, 0, will_return=False)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return False
        request.status = Status.ABANDONED
        return True

    def take_in(self) -> list[Request]:
        """Give blocks to the requests that fit and start decoding those whose KV has arrived.

        Called at a scheduler call; returns the requests that start to decode. The condition for
        blocks is that of admission: the whole known sequence must fit.
        """
        kv, config = self._view.kv, self._view.config
        kv.new_step()
        while self.waiting:
            request = self.waiting[0]
            if len(self._view.running) + self.in_place >= config.running_seq_limit:
                break
            hit = kv.lookup(request)
            if not kv.fits(request, hit):
                break
            self.waiting.popleft()
            kv.pin(request, hit)
            kv.extend(request, request.prompt_tokens)
            # content that the other engine has dropped is not transferred
            kv.drop(request, request.prompt_tokens)
            request.status = Status.TRANSFERRING
            self._receiving += 1
            self.on_blocks(request)
        joined, self._ready = self._ready, []
        for request in joined:
            self._view.start_decoding(request)
        return joined
