"""Taking a request out of an engine, whatever it is in the middle of, with all it holds."""

from __future__ import annotations

from collections.abc import Iterable

from sim.engine_view import EngineView
from sim.in_flight import InFlight
from sim.request import Request, Status


def answers_of(request: Request, view: EngineView, in_flight: Iterable[InFlight]) -> list[Request]:
    """The request, and with several answers all that are in the engine."""
    if request.samples is None:
        return [request]
    seen = dict.fromkeys([request, *view.running, *view.waiting])
    seen |= dict.fromkeys(r for batch in in_flight for r in batch.finishing)
    return [r for r in seen if r is request or r.samples is request.samples]


def take_out(request: Request, view: EngineView, in_flight: Iterable[InFlight]) -> list[Request]:
    """Free what it holds in the running batch or the waiting queue, as a finished request does.

    Steps in flight still compute it; what they give is dropped. Returns the requests that need
    not wait for it any longer to leave (`sim.together.Gang`).
    """
    status, kv = request.status, view.kv
    for batch in in_flight:
        if request in batch.finishing:
            batch.finishing.remove(request)
        if request in batch.first_tokens:
            batch.first_tokens.remove(request)
    if request in view.running:
        if status is Status.DECODING:
            view.decode_group.remove(request)
            request.num_blocks = kv.blocks_held(request, request.num_computed_tokens)
        if view.prefilling.pop(request, request) is None:
            view.num_unforked -= request.num_unforked
        view.left(request)
        kv.release(request, view.hashed_tokens(request), will_return=False)
    elif status is Status.WAITING:
        view.waiting.remove(request)
        kv.free_host_blocks += request.swapped_blocks
        request.swapped_blocks = 0
    request.status = Status.ABANDONED
    gang = request.gang
    if gang is None or status is Status.FINISHED:
        return []
    if request in gang.done:
        gang.done.remove(request)
    done: list[Request] = []
    gang.leave(done)
    return done
