"""Seconds of attention, and of the mixers in its place, from the sums that describe a step."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from costmodels.operators.context_rates import Cap, ChunkRates
from costmodels.operators.operators import DecodeSums, PrefillSums
from costmodels.operators.shared_prefix import SharedPrefixRates
from costmodels.work import Array, slowed
from sim.shape import Clip, clip_columns, clip_layers, ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCurves:
    """Decode seconds of all layers by number of sequences and their mean context."""

    contexts: Array
    """Mean contexts, new token included: ``[k]`` whole numbers, ascending from 0."""
    seconds: Array
    """``[max_num_seqs + 1, k]``; extrapolated beyond the last context from the last two."""

    def decode_s(self, seqs: Array, context_sum: Array) -> Array:
        """Return the seconds of ``n`` steps: ``[n]``; ``context_sum`` excludes the new tokens."""
        called = np.maximum(seqs, 1.0)
        mean = np.where(seqs > 0, (context_sum + seqs) / called, 0.0)
        place = np.clip(
            np.searchsorted(self.contexts, mean, side="right") - 1, 0, len(self.contexts) - 2
        )
        of_seqs = seqs.astype(np.int64)
        low_s, high_s = self.seconds[of_seqs, place], self.seconds[of_seqs, place + 1]
        low, high = self.contexts[place], self.contexts[place + 1]
        return np.where(seqs > 0, low_s + (high_s - low_s) * (mean - low) / (high - low), 0.0)


def summed_curves(curves: Sequence[DecodeCurves]) -> DecodeCurves | None:
    """Sum the curves of several kinds of layers, at the contexts of any of them; None if there
    are none."""
    if len(curves) < 2:
        return curves[0] if curves else None
    contexts = np.unique(np.concatenate([one.contexts for one in curves]))
    seqs = np.arange(len(curves[0].seconds), dtype=np.float64)
    at = (
        np.repeat(seqs, len(contexts)),
        np.repeat(seqs, len(contexts)) * (np.tile(contexts, len(seqs)) - 1),
    )
    seconds = sum((one.decode_s(*at) for one in curves), np.zeros(len(at[0])))
    return DecodeCurves(contexts=contexts, seconds=seconds.reshape(len(seqs), -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrices:
    """`DecodeCurves` in the fixed point of `costmodels.steps.compiled`; all values are
    integers."""

    contexts: list[int]
    start: list[list[int]]
    """Price per step by number of sequences, at each context but the last."""
    token: list[list[int]]
    """Price per context token by number of sequences, between each context and the next."""

    def at(self, decodes: int, context_sum: int) -> int:
        """Return the price of a step's decodes."""
        if not decodes:
            return 0
        tokens = context_sum + decodes
        place = self._place(tokens // decodes)
        beyond = tokens - decodes * self.contexts[place]
        return self.start[decodes][place] + beyond * self.token[decodes][place]

    def run(self, decodes: int, context_sum: int, steps: int) -> list[int]:
        """Return the prices of the decodes of ``steps`` steps in which every context grows by
        one."""
        found: list[int] = []
        while len(found) < steps:
            done = len(found)
            tokens = context_sum + (done + 1) * decodes
            mean = tokens // decodes
            place = self._place(mean)
            count = steps - done
            if place + 1 < len(self.token[decodes]):
                count = min(count, self.contexts[place + 1] - mean)
            beyond = tokens - decodes * self.contexts[place]
            token = self.token[decodes][place]
            first = self.start[decodes][place] + beyond * token
            found += (
                range(first, first + count * decodes * token, decodes * token)
                if token
                else ([first] * count)
            )
        return found

    def slower(self, factor: float) -> CurvePrices:
        """Return a copy with all prices multiplied by ``factor``."""
        return slowed(self, factor, "start", "token")

    def _place(self, mean: int) -> int:
        return min(bisect_right(self.contexts, mean), len(self.contexts) - 1) - 1


def curve_prices(curves: DecodeCurves | None, fixed: Callable[[float], int]) -> CurvePrices | None:
    """Compile curves to fixed point; ``fixed`` converts seconds. None without curves."""
    if curves is None:
        return None
    seqs = np.maximum(np.arange(len(curves.seconds)), 1)[:, None]
    tokens = seqs * np.diff(curves.contexts)
    token_s = np.diff(curves.seconds, axis=1) / tokens
    return CurvePrices(
        contexts=[int(context) for context in curves.contexts],
        start=[[fixed(s) for s in row] for row in curves.seconds[:, :-1].tolist()],
        token=[[fixed(s) for s in row] for row in token_s.tolist()],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """Seconds per unit of each sum of a step, for all layers of one rank.

    A model with full attention only has the single cap None.
    """

    max_num_seqs: int
    decode_token_s: Mapping[Cap, Array]
    """Decode seconds per token of contexts clipped to each cap: the slower of compute and reads,
    by number of decoding sequences: ``[max_num_seqs + 1]``."""
    decode_seqs_s: Array
    """Decode seconds of all sequences together, whatever their contexts: recurrent states, and
    what tables say beyond a time per token: ``[max_num_seqs + 1]``."""
    curves: DecodeCurves | None
    """Decodes of the kinds of layers whose measured time is not linear in the context."""
    chunk: ChunkRates
    """Chunks of prompts: the two sides of the roofline, of which the slower counts."""
    tile_tokens: float
    """Query tokens that a chunk computes beyond its own, in its half-empty last query tile."""
    seq_tokens: int
    """Tokens that a decoding sequence reads beyond its context (`Efficiency.decode_seq_tokens`)."""
    mixed_token_s: Mapping[Cap, float] = field(default_factory=dict)
    """Compute seconds per token of decodes' clipped contexts, in steps with prompts alone."""
    shared: SharedPrefixRates | None = None
    """Prefixes that sequences share and a kernel reads once; None: each sequence reads its own."""

    @property
    def clip_tokens(self) -> tuple[Clip, ...]:
        """All caps except None, in the order of `sim.shape`."""
        caps = {*self.decode_token_s, *self.chunk.pair_s, *self.chunk.read_s}
        return ordered(cap for cap in caps if cap is not None)

    @property
    def is_plain(self) -> bool:
        """Whether sums of whole contexts are all that the rates need."""
        chunk = self.chunk
        of_chunks = chunk.seq_s or chunk.token_s or chunk.chunk_s or chunk.token_read_s
        return not (self.clip_tokens or self.decode_seqs_s.any() or of_chunks)

    def decode_sums(self, columns: Mapping[str, Array]) -> DecodeSums:
        """Return what the decodes of ``n`` steps read, by `sim.shape.shape_columns`."""
        seqs, whole = columns["decode_seqs"], columns["decode_context_tokens"]
        reach: dict[Cap, Array] = {None: whole + self.seq_tokens * seqs}
        for clip in self.clip_tokens:
            beyond = self.seq_tokens * clip_layers(clip) * seqs
            reach[clip] = columns[clip_columns(clip)[0]] + beyond
        return DecodeSums(seqs=seqs, clipped=reach)

    def prefill_sums(self, columns: Mapping[str, Array]) -> PrefillSums:
        """Return what the chunks of ``n`` steps compute and read."""
        prefix: dict[Cap, Array] = {None: columns["prefill_context_tokens"]}
        pairs: dict[Cap, Array] = {None: columns["prefill_pairs"]}
        for clip in self.clip_tokens:
            prefix[clip], pairs[clip] = (columns[name] for name in clip_columns(clip)[2:])
        return PrefillSums(columns["prefill_seqs"], columns["prefill_tokens"], prefix, pairs)

    def decode_s(self, columns: Mapping[str, Array]) -> Array:
        """Return the seconds of the decodes of ``n`` steps, by `sim.shape.shape_columns`: ``[n]``.

        The launches that shared prefixes add are not included.
        """
        seqs = columns["decode_seqs"]
        of_seqs = seqs.astype(np.int64)
        seconds = self.decode_seqs_s[of_seqs]
        reach = self.decode_sums(columns).clipped
        for cap, rate_s in self.decode_token_s.items():
            seconds = seconds + rate_s[of_seqs] * reach[cap]
        if self.curves is not None:
            seconds = seconds + self.curves.decode_s(seqs, columns["decode_context_tokens"])
        if self.shared is not None and "decode_shared_reads" in columns:
            work_s, _, tokens = self.shared.of_columns(columns)
            seconds = seconds + work_s - self.decode_token_s[None][of_seqs] * tokens
        return seconds

    def shared_fixed_s(self, columns: Mapping[str, Array]) -> Array:
        """Return the seconds of the launches that shared prefixes add to ``n`` steps: ``[n]``."""
        if self.shared is None or "decode_shared_reads" not in columns:
            return np.zeros(len(columns["decode_seqs"]))
        return self.shared.of_columns(columns)[1]

    def prefill_sides_s(self, columns: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the compute and memory seconds of the chunks of ``n`` steps: two ``[n]``."""
        chunk, sums = self.chunk, self.prefill_sums(columns)
        seqs, tokens, whole = sums.seqs, sums.tokens, sums.prefix[None]
        compute_s = chunk.token_s * tokens + chunk.prefix_s * whole + chunk.chunk_s * seqs
        reach = self.decode_sums(columns).clipped
        for cap, token_s in self.mixed_token_s.items():
            compute_s = compute_s + np.where(tokens > 0, token_s * reach[cap], 0.0)
        memory_s = chunk.seq_s * seqs + chunk.token_read_s * tokens
        memory_s = memory_s + chunk.pair_read_s * sums.pairs[None]
        for cap, pairs in sums.pairs.items():
            pair_s, kv_tokens = chunk.pair_s.get(cap, 0.0), sums.prefix[cap] + tokens
            compute_s = compute_s + pair_s * (pairs + self.tile_tokens * kv_tokens)
            memory_s = memory_s + chunk.read_s.get(cap, 0.0) * kv_tokens
        for longest, more in chunk.short.items():
            is_short = sums.pairs[longest] >= sums.pairs[None]  # no context is clipped
            tiled = sums.pairs[None] + self.tile_tokens * (whole + tokens)
            compute_s = compute_s + is_short * (more.pair_s * tiled + more.prefix_s * whole)
            memory_s = memory_s + is_short * more.read_s * (whole + tokens)
        return compute_s, memory_s


_TILE_TOKENS = 128
_MEAN_TOKENS = 16384
"""Mean context, long enough that rounding to tiles does not matter."""
_MOST_SPLITS = 32
_SHARE = 1.1
_DRAWS = 8
_SPREAD = 0.5
"""Coefficient of variation of the contexts in a serving batch; 0.15 to 0.9 were seen, and the
schedule hardly depends on it."""


@cache
def imbalance_table(
    max_num_seqs: int, kv_heads: int, num_sms: int, *, equal_contexts: bool = False
) -> NDArray[np.float64]:
    """Return the time of the last SM over the mean, by number of sequences: ``[max_num_seqs + 1]``.

    With ``equal_contexts`` all sequences are of one length, as in a benchmark's grid. The schedule
    is simulated at a few dozen batch sizes and interpolated between them.
    """
    steps = {n * 2**power for power in range(4, 13) for n in (2, 3)}
    every = sorted({*range(1, 25), *steps})
    sizes = every[: bisect_left(every, max_num_seqs) + 1]
    rng = np.random.default_rng(0)  # a table, not a simulation: the draws never change
    sigma = math.sqrt(math.log1p(_SPREAD**2))
    spans = []
    for seqs in sizes:
        draws = 1 if equal_contexts else max(1, min(_DRAWS, 256 // seqs))
        lengths = _MEAN_TOKENS * np.exp(rng.normal(-(sigma**2) / 2, sigma, (draws, seqs)))
        if equal_contexts:
            lengths = np.full((1, seqs), float(_MEAN_TOKENS))
        spans.append(np.mean([_imbalance(row, kv_heads, num_sms) for row in lengths]))
    whole = np.array(spans) * sizes
    if not equal_contexts:  # one more sequence ends no earlier, whatever the draws
        whole = np.maximum.accumulate(whole)
    table: NDArray[np.float64] = np.interp(np.arange(max_num_seqs + 1), sizes, whole / sizes)
    table[0] = 1.0
    return table


def _imbalance(lengths: NDArray[np.float64], kv_heads: int, num_sms: int) -> float:
    """Return the imbalance of one batch: units in batch order, each assigned to the first free
    SM."""
    tiles = np.ceil(lengths / _TILE_TOKENS).astype(int)
    share = math.ceil(tiles.sum() * _SHARE * kv_heads / num_sms)
    busy = [0] * num_sms
    for tile_count in tiles.tolist():
        splits = min(math.ceil(tile_count / share), _MOST_SPLITS)
        piece = math.ceil(tile_count / splits)
        for start in range(0, tile_count, piece):
            size = min(piece, tile_count - start)
            for _ in range(kv_heads):
                heapq.heapreplace(busy, busy[0] + size)
    return max(busy) * num_sms / (int(tiles.sum()) * kv_heads)
