"""Seconds a unit of each sum that describes a step's sequences: attention is linear in all of them.

Which sums a model needs follows from its layers: whole contexts, contexts clipped as
`ModelSpec.clips` says, sequences for recurrent states. `DecodeSums` and `PrefillSums` name them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.layers.parts import ContextTerm
from costmodels.operators import term_operator
from costmodels.parallel import RankShard
from costmodels.work import Operator
from sim.shape import Clip

Cap = Clip | None
Price = Callable[[Operator], float]
"""Seconds of an operator's work, all its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRates:
    """Decoding sequences, all layers, evenly spread over the device."""

    by_kv_heads: Mapping[int, Mapping[Cap, float]]
    """A token of the contexts clipped to each cap: the slower of compute and reads; apart for
    layers whose kernels have more or fewer heads to spread over the device."""
    seq_s: float
    """A sequence: its recurrent states, read and written once a step."""

    @property
    def token_s(self) -> dict[Cap, float]:
        """`by_kv_heads`, all layers together."""
        found: dict[Cap, float] = {}
        for rates in self.by_kv_heads.values():
            for cap, seconds in rates.items():
                found[cap] = found.get(cap, 0.0) + seconds
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRates:
    """Chunks of prompts, all layers. The two sides are summed apart; the slower one counts."""

    pair_s: Mapping[Cap, float]
    """Compute: a query-key pair clipped to each cap."""
    token_s: float
    """Compute: a new token, whatever its context."""
    prefix_s: float
    """Compute: a cached token before the chunk that is expanded again."""
    token_read_s: float
    """Memory: a new token, whatever its context."""
    read_s: Mapping[Cap, float]
    """Memory: a token of the prefix clipped to each cap, or of the chunk itself."""
    seq_s: float
    """Memory: a chunk, for its recurrent states."""


def decode_rates(shard: RankShard, price: Price) -> DecodeRates:
    """The decode rates of a rank's layers."""
    by_kv_heads: dict[int, dict[Cap, float]] = {}
    seq_s = 0.0
    for mixer, count in shard.local.mixers:
        work = mixer.attention(shard.local.precision)
        token_s = by_kv_heads.setdefault(mixer.kv_heads, {})
        for term in work.decode:
            seconds = price(_unit(term, count, flops=1.0, reads=1.0))
            token_s[term.clip] = token_s.get(term.clip, 0.0) + seconds
        once = ContextTerm(flops=work.decode_seq_flops, bytes=work.decode_seq_bytes)
        seq_s += price(_unit(once, count, flops=1.0, reads=1.0))
    return DecodeRates(by_kv_heads=by_kv_heads, seq_s=seq_s)


def chunk_rates(shard: RankShard, price: Price) -> ChunkRates:
    """The prefill rates of a rank's layers that prompts pass."""
    pair_s: dict[Cap, float] = {}
    read_s: dict[Cap, float] = {}
    token_s = token_read_s = prefix_s = seq_s = 0.0
    for mixer, count in shard.local.prompt_mixers:
        work = mixer.attention(shard.local.precision)
        for term in work.prefill:
            cap = term.clip
            pair_s[cap] = pair_s.get(cap, 0.0) + price(_unit(term, count, flops=1.0))
            read_s[cap] = read_s.get(cap, 0.0) + price(_unit(term, count, reads=1.0))
        chunk = ContextTerm(flops=work.prefill_token_flops, bytes=work.prefill_seq_bytes)
        token_s += price(_unit(chunk, count, flops=1.0))
        seq_s += price(_unit(chunk, count, reads=1.0))
        token = ContextTerm(bytes=work.prefill_token_bytes)
        token_read_s += price(_unit(token, count, reads=1.0))
        prefix_s += price(_unit(ContextTerm(flops=work.prefix_flops), count, flops=1.0))
    return ChunkRates(
        pair_s=pair_s,
        token_s=token_s,
        prefix_s=prefix_s,
        token_read_s=token_read_s,
        read_s=read_s,
        seq_s=seq_s,
    )


def _unit(term: ContextTerm, count: int, *, flops: float = 0.0, reads: float = 0.0) -> Operator:
    return term_operator(term, count, np.array([flops]), np.array([reads]))
