"""Everything about a step that depends on one count alone, tabulated once for all counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware.roofline import OperatorSeconds
from costmodels.operators.attention import AttentionRates
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import logit_operators, token_operators
from costmodels.work import Array, Operator
from sim.shape import clip_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """A step's operators priced at every token count and every number of logits.

    Attention is linear in its sums, so it needs rates instead of a table.
    """

    by_tokens: tuple[OperatorSeconds, ...]
    """Arrays ``[max_num_batched_tokens + 1]``, indexed by tokens before padding to a graph."""
    by_logits: tuple[OperatorSeconds, ...]
    """Arrays ``[max_num_seqs * tokens_per_seq + 1]``, indexed by logits."""
    attention: AttentionRates
    tokens_per_seq: int = 1
    """Tokens that each decoding sequence computes."""

    def token_seconds(self) -> Array:
        """Return the GPU seconds of all operators by token count: ``[max_num_batched_tokens +
        1]``."""
        return _sum([op.total_s for op in self.by_tokens])

    def compute_seconds(self) -> Array:
        """Return the compute-bound part of `token_seconds`."""
        return _sum([np.where(op.compute_bound, op.work_s, 0.0) for op in self.by_tokens])

    def logit_seconds(self) -> Array:
        """Return the GPU seconds of all operators by number of logits."""
        return _sum([op.total_s for op in self.by_logits])


def build_tables(
    kernels: KernelTimes,
    *,
    graph_sizes: tuple[int, ...],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    equal_contexts: bool,
    tokens_per_seq: int = 1,
) -> StepTables:
    """Price every operator at every size; raises what `KernelTimes.price` raises."""
    shard, efficiency = kernels.shard, kernels.efficiency

    def priced(operators: list[Operator]) -> tuple[OperatorSeconds, ...]:
        return tuple(kernels.price(operator) for operator in operators)

    sizes = padded_sizes(np.arange(max_num_batched_tokens + 1), graph_sizes)
    logits = np.arange(max_num_seqs * tokens_per_seq + 1, dtype=np.float64)
    return StepTables(
        by_tokens=priced(token_operators(shard, sizes)),
        by_logits=priced(logit_operators(shard, logits, efficiency.sampling_bytes_per_logit)),
        attention=kernels.attention_rates(
            max_num_seqs, equal_contexts=equal_contexts, queries=tokens_per_seq
        ),
        tokens_per_seq=tokens_per_seq,
    )


def padded_sizes(tokens: NDArray[np.int64], graph_sizes: tuple[int, ...]) -> Array:
    """Return each token count padded to its CUDA graph: float64 ``[n]``. A count of 0 stays 0."""
    if not graph_sizes:
        return tokens.astype(np.float64)
    graphs = np.array(graph_sizes)
    place = np.minimum(np.searchsorted(graphs, tokens), graphs.size - 1)
    in_graph = (tokens > 0) & (tokens <= graphs[-1])
    return np.where(in_graph, graphs[place], tokens).astype(np.float64)


def _sum(arrays: list[Array]) -> Array:
    total: Array = np.sum(arrays, axis=0)
    return total


FixedPoint = Callable[[float], int]


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
    """`context_rates.ShortRates`: index of its clip; prices per pair, per KV token in the last
    query tiles, per prefix token, per token read."""

    def of_decodes(self, decodes: int, clipped: tuple[int, ...]) -> int:
        """Return the price of a step's decodes."""
        total = self.decode_seqs[decodes]
        for tokens, rates in zip(clipped[::4], self.decode_token, strict=True):
            total += tokens * rates[decodes]
        return total

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

        def scaled(prices: list[int]) -> list[int]:
            return [round(price * factor) for price in prices]

        return ClipPrices(
            decode_seqs=scaled(self.decode_seqs),
            decode_token=[scaled(prices) for prices in self.decode_token],
            chunk_pair=scaled(self.chunk_pair),
            chunk_tile=scaled(self.chunk_tile),
            chunk_read=scaled(self.chunk_read),
            chunk_token=round(self.chunk_token * factor),
            chunk_fixed=round(self.chunk_fixed * factor),
            chunk_token_read=round(self.chunk_token_read * factor),
            chunk_seq=round(self.chunk_seq * factor),
            short=[
                (place, *(round(price * factor) for price in prices))  # type: ignore[misc]
                for place, *prices in self.short
            ],
        )


def clip_prices(rates: AttentionRates, fixed: FixedPoint) -> ClipPrices | None:
    """Compile the prices; None if a step needs only sums of whole contexts."""
    if rates.is_plain:
        return None
    caps, chunk = rates.clip_tokens, rates.chunk
    seqs = np.arange(rates.max_num_seqs + 1)
    decode_token_s = [rates.decode_token_s.get(cap, np.zeros(len(seqs))) for cap in caps]
    layers = (seconds * clip_layers(cap) for cap, seconds in zip(caps, decode_token_s, strict=True))
    decode_seqs_s = rates.decode_seqs_s + seqs * rates.seq_tokens * sum(layers)
    return ClipPrices(
        decode_seqs=[fixed(seconds) for seconds in decode_seqs_s.tolist()],
        decode_token=[[fixed(s) for s in by_seqs.tolist()] for by_seqs in decode_token_s],
        chunk_pair=[fixed(chunk.pair_s.get(cap, 0.0)) for cap in caps],
        chunk_tile=[fixed(chunk.pair_s.get(cap, 0.0) * rates.tile_tokens) for cap in caps],
        chunk_read=[fixed(chunk.read_s.get(cap, 0.0)) for cap in caps],
        chunk_token=fixed(chunk.token_s),
        chunk_fixed=fixed(chunk.chunk_s),
        chunk_token_read=fixed(chunk.token_read_s),
        chunk_seq=fixed(chunk.seq_s),
        short=[
            (
                caps.index(longest),
                fixed(more.pair_s),
                fixed(more.pair_s * rates.tile_tokens),
                fixed(more.prefix_s),
                fixed(more.read_s),
            )
            for longest, more in chunk.short.items()
        ],
    )
