"""Taking a request out of an engine, in whatever state it is, with everything it holds."""

from __future__ import annotations

from collections.abc import Iterable

from sim.engine.config import why_no_beams
from sim.engine.step import InFlight
from sim.engine.view import EngineView
from sim.request import Request, Status


def answers_of(request: Request, view: EngineView, in_flight: Iterable[InFlight]) -> list[Request]:
    """Return the request and, if it has several answers, all of them that are in the engine."""
    if request.samples is None:
        return [request]
    seen = dict.fromkeys([request, *view.running, *view.waiting])
    seen |= dict.fromkeys(r for batch in in_flight for r in batch.finishing)
    return [r for r in seen if r is request or r.samples is request.samples]


def take_out(request: Request, view: EngineView, in_flight: Iterable[InFlight]) -> list[Request]:
    """Free what a request holds in the running batch or the waiting queue, as if it had finished.

    Steps in flight still compute it; their outputs for it are dropped. Returns the requests that
    can leave because they no longer wait for it (`sim.request.Gang`).
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
        view.remove_running(request)
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


def refusal(request: Request, view: EngineView) -> str | None:
    """Return why a request can never be served by an engine, or None."""
    config, kv = view.config, view.kv
    tokens = request.prompt_tokens + request.output_tokens
    if tokens > config.max_model_len:
        return "longer than max_model_len"
    for refuse in view.hooks.refusal:
        reason = refuse(request)
        if reason:
            return reason
    if request.beams is not None:
        reason = why_no_beams(config)
        if reason:
            return f"beam search, which is not modelled with {reason}"
    # Assume that no tokens are dropped: preempted near its end, the request is recomputed in one
    # piece. Its drafts must fit too, when it runs alone.
    tokens = max(tokens, min(tokens + config.tokens_beyond, config.max_model_len))
    if not view.decodes_here:
        tokens = request.prompt_tokens + 1
    if kv.blocks_for(tokens) > kv.usable_blocks:
        return "longer than the KV pool"
    if request.is_several:  # hypotheses may share no more blocks than separate answers do
        which = "answers" if request.beams is None else "beams"
        if request.width + request.num_unforked > config.running_seq_limit:
            return f"more {which} than max_num_seqs"
        together = kv.blocks_for(tokens) + kv.further_blocks(request, tokens)
        if together > kv.usable_blocks:
            return f"its {which} are longer than the KV pool"
    return None
