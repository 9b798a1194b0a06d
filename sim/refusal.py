"""Requests that an engine can never serve, and why."""

from __future__ import annotations

from sim.beams import why_no_beams
from sim.engine_view import EngineView
from sim.protocols import HandOver
from sim.request import Request


def refusal(request: Request, view: EngineView, hand_over: HandOver | None) -> str | None:
    """None if it can be served. ``hand_over``: of an engine that only prefills."""
    config, kv = view.config, view.kv
    tokens = request.prompt_tokens + request.output_tokens
    if tokens > config.max_model_len:
        return "longer than max_model_len"
    if request.beams is not None:
        reason = "P/D disaggregation" if hand_over else why_no_beams(config)
        if reason:
            return f"beam search, which is not modelled with {reason}"
    # Nothing dropped of it: preempted near its end, it is computed again in one piece.
    if hand_over is not None:
        if request.samples is not None:
            return "several answers, which one engine has to decode"
        reason = hand_over.refusal(request)
        if reason:
            return reason
        tokens = request.prompt_tokens + 1
    else:  # what it drafts has to fit too, when it is alone
        tokens = max(tokens, min(tokens + config.tokens_beyond, config.max_model_len))
    if kv.blocks_for(tokens) > kv.usable_blocks:
        return "longer than the KV pool"
    if request.is_several:  # hypotheses may turn out to share no more than answers do
        which = "answers" if request.beams is None else "beams"
        if request.width + request.num_unforked > config.max_num_seqs:
            return f"more {which} than max_num_seqs"
        together = kv.blocks_for(tokens) + kv.further_blocks(request, tokens)
        if together > kv.usable_blocks:
            return f"its {which} are longer than the KV pool"
    return None
