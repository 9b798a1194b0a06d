"""KV that moves between engines, seen from each end: sent on, awaited, or fetched from a peer.

`SendingKV` is in an engine that only prefills, `ArrivingKV` in one that decodes what others have
prefilled, `FetchedPrefixes` in engines that fetch prefixes from each other. What moves, and when,
is decided in `sim.fleet.handover` and `sim.fleet.fetches`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from sim.engine.lifecycle import Lifecycle
from sim.engine.step import InFlight, Plan
from sim.engine.view import EngineView
from sim.protocols import HandOver
from sim.recorder import DecodeLog, RequestLog
from sim.request import Request, Status


class SendingKV:
    """The prefill side of a handover: requests with a first token are decoded elsewhere."""

    num_waiting = num_running = 0
    wants_blocks = False
    holding: Iterable[Request] = ()

    def __init__(self, hand_over: HandOver, replica: int) -> None:
        self._hand_over = hand_over
        self._replica = replica

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        self._wake = wake
        # Prefilled here; their blocks stay until their KV has been sent.
        self._handed_over: dict[Request, None] = {}
        view.decodes_here = False
        hooks = view.hooks
        hooks.places.append(self)
        hooks.refusal.append(self._refusal)
        hooks.preempted.append(self._hand_over.preempted)
        hooks.launched.append(self._launched)
        hooks.prefilled.append(self._prefilled)
        hooks.read.append(self._read)

    @property
    def in_transit(self) -> bool:
        """Whether KV is being sent on, or waits for it."""
        return bool(self._handed_over)

    def let_go(self, request: Request) -> None:
        """Free the blocks of a request that was handed over; its KV has been sent."""
        self._free(request)
        self._wake()

    def drop(self, request: Request) -> bool:
        """Free the blocks of a cancelled request; returns False if it is not here."""
        if request not in self._handed_over:
            return False
        self._free(request)
        return True

    def _free(self, request: Request) -> None:
        del self._handed_over[request]
        self._view.kv.release(request, request.num_computed_tokens, will_return=False)

    def _refusal(self, request: Request) -> str | None:
        if request.beams is not None:
            return "beam search, which is not modelled with P/D disaggregation"
        if request.is_several:
            return "several answers, which one engine has to decode"
        return self._hand_over.refusal(request)

    def _launched(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        for request, _ in plan.prefills:
            self._hand_over.computed(request, self._replica, start_ns, end_ns)

    def _prefilled(self, request: Request, batch: InFlight) -> bool:
        request.status = Status.FINISHING
        del self._view.running[request]
        self._handed_over[request] = None
        batch.finishing.append(request)
        if request.gang is not None:  # it leaves alone, and the others without it
            request.gang.leave(batch.finishing)
        return True

    def _read(self, request: Request) -> bool:
        if request.num_sampled_tokens == request.output_tokens:
            return False
        if not request.cancelled:
            request.status = Status.TRANSFERRING
            self._hand_over.prefilled(request, self._replica)
        return True


class ArrivingKV:
    """The decode side of a handover. First come, first served: a request gets blocks, then its KV
    arrives, then it decodes."""

    holding: Iterable[Request] = ()

    def __init__(
        self,
        lifecycle: Lifecycle,
        log: RequestLog | DecodeLog,
        on_blocks: Callable[[Request], None],
    ) -> None:
        """``on_blocks`` is called with every request that was given its blocks."""
        self._lifecycle = lifecycle
        self._log = log
        self._on_blocks = on_blocks

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        self._wake = wake
        # Requests without blocks yet.
        self._waiting: deque[Request] = deque()
        self._receiving = 0
        self._ready: list[Request] = []
        view.hooks.places.append(self)
        view.hooks.take_in.append(self._take_in)

    @property
    def num_waiting(self) -> int:
        """Number of requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Number of requests that have blocks and do not decode yet."""
        return self._receiving + len(self._ready)

    @property
    def wants_blocks(self) -> bool:
        """Whether a request waits for blocks."""
        return bool(self._waiting)

    @property
    def in_transit(self) -> bool:
        """Whether KV is expected, or has arrived and is not decoded yet."""
        return bool(self._waiting or self._receiving or self._ready)

    def expect(self, request: Request) -> None:
        """Expect a request that was prefilled elsewhere; it gets blocks for its KV."""
        self._waiting.append(request)
        self._lifecycle.publish_load()
        self._wake()

    def join(self, request: Request) -> None:
        """All KV of an expected request has arrived: it decodes from the next plan on."""
        self._receiving -= 1
        self._ready.append(request)
        self._wake()

    def drop(self, request: Request) -> bool:
        """Drop a cancelled request; returns False if it is not here (any more)."""
        if request.status is Status.TRANSFERRING:
            if request in self._ready:
                self._ready.remove(request)
            else:
                self._receiving -= 1
            self._view.kv.release(request, 0, will_return=False)
        elif request in self._waiting:
            self._waiting.remove(request)
        else:
            return False
        request.status = Status.ABANDONED
        return True

    def _take_in(self, row: int, now_ns: int) -> bool:
        """Give blocks to the requests that fit and start decoding those whose KV has arrived.

        The condition for blocks is that of admission: the whole known sequence must fit.
        """
        if not self.in_transit:
            return False
        kv, config = self._view.kv, self._view.config
        kv.new_step()
        while self._waiting:
            request = self._waiting[0]
            if len(self._view.running) + self.num_running >= config.running_seq_limit:
                break
            hit = kv.lookup(request)
            if not kv.fits(request, hit):
                break
            self._waiting.popleft()
            kv.pin(request, hit)
            kv.extend(request, request.prompt_tokens)
            # content that the other engine has dropped is not transferred
            kv.drop(request, request.prompt_tokens)
            request.status = Status.TRANSFERRING
            self._receiving += 1
            self._on_blocks(request)
        joined, self._ready = self._ready, []
        for request in joined:
            self._view.start_decoding(request)
            self._log.admitted(request, now_ns, row)
        return bool(joined)


class FetchedPrefixes:
    """Requests whose prefix is fetched from a peer before they join the queue, and the prefixes
    that peers fetch from here."""

    num_running = 0
    wants_blocks = False
    holding: Iterable[Request] = ()

    def __init__(self, lifecycle: Lifecycle, on_crash: Callable[[], None]) -> None:
        """``on_crash`` is called when the engine crashes, before it loses its KV."""
        self._lifecycle = lifecycle
        self._on_crash = on_crash

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._wake = wake
        # Requests -> callback that gives up the fetch.
        self._fetching: dict[Request, Callable[[], None]] = {}
        # Prefixes that peers are fetching from here; their blocks stay pinned.
        self._pinned_for_peers = 0
        view.hooks.places.append(self)
        view.hooks.crashed.append(self._on_crash)

    @property
    def num_waiting(self) -> int:
        """Number of requests whose prefix is on its way."""
        return len(self._fetching)

    @property
    def in_transit(self) -> bool:
        """Whether prefixes are being fetched, from peers or by them."""
        return bool(self._fetching or self._pinned_for_peers)

    def await_prefix(self, request: Request, give_up: Callable[[], None], now_ns: int) -> None:
        """Hold an arriving request until `prefix_arrived`; until then it counts as waiting here.
        ``give_up`` is called if it is cancelled before."""
        self._fetching[request] = give_up
        self._lifecycle.await_prompt(request, now_ns)

    def prefix_arrived(self, request: Request) -> None:
        """The prefix of a request has been fetched, or will not come: let the request join the
        queue."""
        del self._fetching[request]
        self._lifecycle.inbox.append(request)
        self._wake()

    def lend(self, prefixes: int) -> None:
        """Count ``prefixes`` more cached prefixes being fetched by peers; negative: that many
        fewer."""
        self._pinned_for_peers += prefixes
        if prefixes < 0:
            self._wake()

    def drop(self, request: Request) -> bool:
        """Give up the fetch of a cancelled request; returns False if it is not here."""
        if request not in self._fetching:
            return False
        self._fetching.pop(request)()
        return True
