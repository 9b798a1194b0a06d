"""Prices of clipped contexts and of recurrent states in integers, and how seconds become them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.operators.attention import AttentionRates
from costmodels.work import ONE, Array, slowed
from sim.clock import NS_PER_S, to_ns
from sim.shape import clip_layers


def to_fixed_ns(seconds: float) -> int:
    """Return nanoseconds in fixed point."""
    return round(seconds * NS_PER_S * ONE)


def whole_ns(seconds: Array) -> list[int]:
    """Return seconds as whole nanoseconds."""
    return [to_ns(value) for value in seconds.tolist()]


def fixed_table(seconds: Array) -> list[int]:
    """Return seconds as nanoseconds in fixed point."""
    return [to_fixed_ns(value) for value in seconds.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPrices:
    """Integer prices of clipped contexts (lists by cap, ascending) and of recurrent states.

    ``clipped`` below is `sim.shape.StepShape.clipped`: four sums per cap.
    """

    decode_seqs: list[int]
    """``[max_num_seqs + 1]`` price of all decoding sequences: their states, and what each reads
    beyond its clipped contexts."""
    decode_token: list[list[int]]
    """Price per token of clipped context, by cap and number of decoding sequences."""
    mixed_token: list[int]
    """Compute price per token of decodes' clipped contexts in a step with prompts, by cap; the
    next: per decoding sequence."""
    mixed_seq: int
    chunk_pair: list[int]
    chunk_tile: list[int]
    """Price per KV token in a clipped context or a chunk, for its share in the last query tiles."""
    chunk_read: list[int]
    chunk_token: int
    chunk_fixed: int
    """Compute price per chunk. The next two are memory prices: per new token, and per chunk."""
    chunk_token_read: int
    chunk_seq: int
    short: list[tuple[int, int, int, int, int]]
    """`context_rates.ShortRates`: place of its clip; prices per pair, per KV token in the last
    query tiles, per prefix token, per token read."""

    def of_decodes(self, decodes: int, clipped: tuple[int, ...]) -> int:
        """Return the price of a step's decodes."""
        total = self.decode_seqs[decodes]
        for tokens, rates in zip(clipped[::4], self.decode_token, strict=True):
            total += tokens * rates[decodes]
        return total

    def of_mixed(self, decodes: int, clipped: tuple[int, ...]) -> int:
        """Return the compute price of a step's decodes beside prompts."""
        tokens = zip(clipped[::4], self.mixed_token, strict=True)
        return decodes * self.mixed_seq + sum(count * price for count, price in tokens)

    def growth(self, decodes: int, clipped: tuple[int, ...]) -> int:
        """Return how much more the decodes of the next step cost."""
        growing = zip(clipped[1::4], self.decode_token, strict=True)
        return sum(seqs * rates[decodes] for seqs, rates in growing)

    def of_rises(self, decodes: int, clips: list[list[int]], steps: int) -> list[int]:
        """Return how much more the decodes of each step of a run cost than those of its first."""
        rates = [of_clip[decodes] for of_clip in self.decode_token]
        if not clips:
            return [0] * steps
        return [
            sum(risen * rate for risen, rate in zip(step, rates, strict=True))
            for step in zip(*clips, strict=True)
        ]

    def of_chunks(
        self, seqs: int, tokens: int, clipped: tuple[int, ...], prefix: int, pairs: int
    ) -> tuple[int, int]:
        """Return the compute and memory price of a step's chunks, with whole prefixes and pairs
        too."""
        compute = tokens * self.chunk_token + seqs * self.chunk_fixed
        memory = tokens * self.chunk_token_read + seqs * self.chunk_seq
        for index, pair in enumerate(self.chunk_pair):
            kv_tokens = clipped[4 * index + 2] + tokens
            compute += clipped[4 * index + 3] * pair + kv_tokens * self.chunk_tile[index]
            memory += kv_tokens * self.chunk_read[index]
        for place, pair, tile, before, read in self.short:
            if clipped[4 * place + 3] >= pairs:  # no query reaches beyond the clip
                compute += pairs * pair + (prefix + tokens) * tile + prefix * before
                memory += (prefix + tokens) * read
        return compute, memory

    def slower(self, factor: float) -> ClipPrices:
        """Return a copy with all prices multiplied by ``factor``."""
        found = slowed(self, factor, *self.__slots__)
        pairs = zip(self.short, found.short, strict=True)  # a place is no price
        short = [(place, *prices) for (place, *_), (_, *prices) in pairs]
        return replace(found, short=short)  # type: ignore[arg-type]


def clip_prices(rates: AttentionRates) -> ClipPrices | None:
    """Compile the prices; None if a step needs only sums of whole contexts."""
    if rates.is_plain:
        return None
    caps, chunk = rates.clip_tokens, rates.chunk
    seqs = np.arange(rates.max_num_seqs + 1)
    decode_token_s = [rates.decode_token_s.get(cap, np.zeros(len(seqs))) for cap in caps]
    layers = (seconds * clip_layers(cap) for cap, seconds in zip(caps, decode_token_s, strict=True))
    decode_seqs_s = rates.decode_seqs_s + seqs * rates.seq_tokens * sum(layers)
    mixed_s = [rates.mixed_token_s.get(cap, 0.0) for cap in caps]
    of_seq_s = sum(clip_layers(cap) * more_s for cap, more_s in zip(caps, mixed_s, strict=True))
    return ClipPrices(
        mixed_token=[to_fixed_ns(more_s) for more_s in mixed_s],
        mixed_seq=to_fixed_ns(rates.seq_tokens * of_seq_s),
        decode_seqs=fixed_table(decode_seqs_s),
        decode_token=[fixed_table(by_seqs) for by_seqs in decode_token_s],
        chunk_pair=[to_fixed_ns(chunk.pair_s.get(cap, 0.0)) for cap in caps],
        chunk_tile=[to_fixed_ns(chunk.pair_s.get(cap, 0.0) * rates.tile_tokens) for cap in caps],
        chunk_read=[to_fixed_ns(chunk.read_s.get(cap, 0.0)) for cap in caps],
        chunk_token=to_fixed_ns(chunk.token_s),
        chunk_fixed=to_fixed_ns(chunk.chunk_s),
        chunk_token_read=to_fixed_ns(chunk.token_read_s),
        chunk_seq=to_fixed_ns(chunk.seq_s),
        short=[
            (
                caps.index(longest),
                to_fixed_ns(more.pair_s),
                to_fixed_ns(more.pair_s * rates.tile_tokens),
                to_fixed_ns(more.prefix_s),
                to_fixed_ns(more.read_s),
            )
            for longest, more in chunk.short.items()
        ],
    )
