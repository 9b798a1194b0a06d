"""Seconds per unit of each sum that describes a step's sequences: attention is linear in all of
them.

The sums that a model needs follow from its layers: whole contexts, contexts clipped as in
`ModelSpec.clips`, sequences for recurrent states. `DecodeSums` and `PrefillSums` name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.layouts.shard import RankShard
from costmodels.models.layers.parts import AttentionWork, ContextTerm, Mixer, ShortChunks
from costmodels.operators.operators import term_operator
from costmodels.work import Operator
from sim.shape import Clip

Cap = Clip | None
Price = Callable[[Operator], float]
"""Returns the seconds of an operator's work for all its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRates:
    """Rates of decoding sequences for all layers, evenly spread over the device."""

    by_kv_heads: Mapping[int, Mapping[Cap, float]]
    """Seconds per token of the contexts clipped to each cap: the slower of compute and reads.
    Layers are grouped by KV heads, which their kernels spread over the device."""
    seq_s: float
    """Seconds per sequence to read and write its recurrent states once per step."""

    @property
    def token_s(self) -> dict[Cap, float]:
        """The rates of `by_kv_heads`, summed over all layers."""
        found: dict[Cap, float] = {}
        for rates in self.by_kv_heads.values():
            for cap, seconds in rates.items():
                found[cap] = found.get(cap, 0.0) + seconds
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRates:
    """Rates of chunks of prompts for all layers. Compute and memory are summed apart; the slower
    counts."""

    pair_s: Mapping[Cap, float]
    """Compute seconds per query-key pair clipped to each cap."""
    token_s: float
    """Compute seconds per new token, whatever its context."""
    chunk_s: float = 0.0
    """Compute seconds per chunk, whatever its tokens, beyond the kernel's launch (from tables
    only)."""
    prefix_s: float
    """Compute seconds per cached token before the chunk that is expanded again."""
    token_read_s: float
    """Memory seconds per new token, whatever its context."""
    read_s: Mapping[Cap, float]
    """Memory seconds per token of the prefix clipped to each cap, or of the chunk itself."""
    seq_s: float
    """Memory seconds per chunk, for its recurrent states."""
    pair_read_s: float = 0.0
    """Memory seconds per query-key pair, if its scores are written and read."""
    short: Mapping[int, ShortRates]
    """Corrections by the longest context at which another way is taken (`ShortChunks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRates:
    """Correction added to `ChunkRates` if all contexts are short; mostly negative."""

    pair_s: float
    """Compute seconds per query-key pair; ``prefix_s``: per cached token before a chunk."""
    prefix_s: float
    read_s: float
    """Memory seconds per token of the prefix, or of the chunk itself."""

    def __add__(self, other: ShortRates) -> ShortRates:
        return ShortRates(
            pair_s=self.pair_s + other.pair_s,
            prefix_s=self.prefix_s + other.prefix_s,
            read_s=self.read_s + other.read_s,
        )


def decode_rates(
    shard: RankShard,
    price: Price,
    mixers: tuple[tuple[Mixer, int], ...] | None = None,
    queries: int = 1,
) -> DecodeRates:
    """Return the decode rates of a rank's layers, or only of ``mixers``, each with its count.

    The ``queries`` of a sequence read its context once; each computes with it.

    If ranks split contexts, each rank reads its part of a token. The ranks of one tensor-parallel
    group also compute their part for each other's heads, so only their reads become fewer.
    """
    parts, copies = shard.layout.context_ranks, shard.layout.prefill_context_parallel_size
    by_kv_heads: dict[int, dict[Cap, float]] = {}
    seq_s = 0.0
    for mixer, count in shard.local.mixers if mixers is None else mixers:
        work = mixer.attention(shard.local.precision)
        token_s = by_kv_heads.setdefault(mixer.kv_heads, {})
        for term in work.decode:
            seconds = price(_unit(term, count, flops=queries / copies, reads=1.0 / parts))
            token_s[term.clip] = token_s.get(term.clip, 0.0) + seconds
        once = ContextTerm(flops=work.decode_seq_flops, bytes=work.decode_seq_bytes)
        seq_s += price(_unit(once, count, flops=float(queries), reads=1.0))
    return DecodeRates(by_kv_heads=by_kv_heads, seq_s=seq_s)


def encoder_rate(shard: RankShard, price: Price) -> float:
    """Return the seconds of the towers' work for each new token of a prompt; 0 without images."""
    if not shard.local.encoder_flops:
        return 0.0
    return price(_unit(ContextTerm(flops=shard.local.encoder_flops), 1, flops=1.0))


def chunk_rates(
    shard: RankShard, price: Price, mixers: tuple[tuple[Mixer, int], ...] | None = None
) -> ChunkRates:
    """Return the prefill rates of a rank's layers that prompts pass, or only of ``mixers``."""
    pair_s: dict[Cap, float] = {}
    read_s: dict[Cap, float] = {}
    short: dict[int, ShortRates] = {}
    token_s = token_read_s = prefix_s = seq_s = 0.0
    for mixer, count in shard.local.prompt_mixers if mixers is None else mixers:
        work = mixer.attention(shard.local.precision)
        for term in work.prefill:
            cap = term.clip
            pair_s[cap] = pair_s.get(cap, 0.0) + price(_unit(term, count, flops=1.0))
            read_s[cap] = read_s.get(cap, 0.0) + price(_unit(term, count, reads=1.0))
        chunk = ContextTerm(flops=work.prefill_token_flops, bytes=work.prefill_seq_bytes)
        seq_s += price(_unit(chunk, count, reads=1.0))
        compute_s = price(_unit(chunk, count, flops=1.0))
        moved_s = price(_unit(ContextTerm(bytes=work.prefill_token_bytes), count, reads=1.0))
        if not work.prefill:  # linear attention: its slower side adds to that of other layers
            compute_s = moved_s = max(compute_s, moved_s)
        token_s, token_read_s = token_s + compute_s, token_read_s + moved_s
        prefix_s += price(_unit(ContextTerm(flops=work.prefix_flops), count, flops=1.0))
        if work.short is not None:
            more = _short_rates(work, work.short, count, price)
            longest = work.short.longest_tokens
            short[longest] = short[longest] + more if longest in short else more
    if mixers is None:
        token_s += encoder_rate(shard, price)
    return ChunkRates(
        pair_s=pair_s,
        token_s=token_s,
        prefix_s=prefix_s,
        token_read_s=token_read_s,
        read_s=read_s,
        seq_s=seq_s,
        short=short,
    )


def _short_rates(work: AttentionWork, short: ShortChunks, count: int, price: Price) -> ShortRates:
    """Return the correction for short chunks. No clip is reached, so that a clipped pair is a
    pair."""

    def total(terms: tuple[ContextTerm, ...], flops: float, reads: float) -> float:
        return sum(price(_unit(term, count, flops=flops, reads=reads)) for term in terms)

    def prefix_s(flops: float) -> float:
        return price(_unit(ContextTerm(flops=flops), count, flops=1.0))

    return ShortRates(
        pair_s=total(short.prefill, 1.0, 0.0) - total(work.prefill, 1.0, 0.0),
        prefix_s=prefix_s(short.prefix_flops) - prefix_s(work.prefix_flops),
        read_s=total(short.prefill, 0.0, 1.0) - total(work.prefill, 0.0, 1.0),
    )


def _unit(term: ContextTerm, count: int, *, flops: float = 0.0, reads: float = 0.0) -> Operator:
    return term_operator(term, count, np.array([flops]), np.array([reads]))
