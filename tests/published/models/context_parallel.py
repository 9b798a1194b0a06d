"""Prefill attention with a prompt's tokens spread over several ranks: its exchanges, and its time.

Covers one layer and one chunk; `context_cost` prices a whole step of this.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class ContextParallel(NamedTuple):
    """One layer's attention of one chunk."""

    seconds: float
    exposed_s: float
    """Of these, what exchanging keys and values adds to computing."""
    sent_bytes: float
    """By each rank."""


def context_parallel(
    *,
    attention_s: float,
    kv_bytes: float,
    ranks: int,
    bytes_per_s: float,
    latency_s: float = 0.0,
    mode: Literal["ring", "all_gather"] = "ring",
) -> ContextParallel:
    """Attention that takes one rank ``attention_s``, over ``ranks`` with equal parts of the work.

    ``kv_bytes`` are the keys and values of the whole prompt, cached prefix included. In a ring
    every rank passes its part on ranks - 1 times and attends to the part it holds meanwhile (causal
    prompts are cut so that all have as much to do). An all-gather comes before attention. Either
    way each rank sends (ranks - 1) / ranks of ``kv_bytes``.
    """
    if ranks < 1 or bytes_per_s <= 0:
        raise ValueError("ranks must be at least 1 and bytes_per_s above 0")
    each_s = attention_s / ranks
    passes = ranks - 1
    sent = passes / ranks * kv_bytes
    if not passes:
        return ContextParallel(each_s, 0.0, 0.0)
    if mode == "all_gather":
        gather_s = passes * latency_s + sent / bytes_per_s
        return ContextParallel(each_s + gather_s, gather_s, sent)
    pass_s = latency_s + kv_bytes / ranks / bytes_per_s
    block_s = each_s / ranks
    exposed_s = passes * max(0.0, pass_s - block_s)
    return ContextParallel(each_s + exposed_s, exposed_s, sent)
