"""Seconds of attention, and of what stands in its place, from the sums that describe a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.context_rates import Cap, ChunkRates
from costmodels.decode_curves import DecodeCurves
from costmodels.shared_prefix import SharedPrefixRates
from costmodels.work import Array
from sim.shape import Clip, clip_columns, clip_layers, ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """All layers of one rank. A model of full attention alone has the cap None only."""

    max_num_seqs: int
    decode_token_s: Mapping[Cap, Array]
    """Decodes, a token of contexts clipped to each cap: the slower of compute and reads, by number
    of decoding sequences: ``[max_num_seqs + 1]``."""
    decode_seqs_s: Array
    """All decoding sequences together, whatever their contexts: recurrent states, and what tables
    say beyond a time a token: ``[max_num_seqs + 1]``."""
    curves: DecodeCurves | None
    """Decodes of the kinds of layers that tables say are no line in the context."""
    chunk: ChunkRates
    """Chunks of prompts: the two sides of the roofline, of which the slower counts."""
    tile_tokens: float
    """Query tokens that a chunk computes beyond its own: its half-empty last query tile."""
    seq_tokens: int
    """Tokens a decoding sequence reads beyond its context (`Efficiency.decode_seq_tokens`)."""
    shared: SharedPrefixRates | None = None
    """Prefixes that sequences share and a kernel reads once; None: each reads its own."""

    @property
    def clip_tokens(self) -> tuple[Clip, ...]:
        """The caps but None, in the order of `sim.shape`."""
        caps = {*self.decode_token_s, *self.chunk.pair_s, *self.chunk.read_s}
        return ordered(cap for cap in caps if cap is not None)

    @property
    def is_plain(self) -> bool:
        """Whether sums of whole contexts are all it needs."""
        chunk = self.chunk
        of_chunks = chunk.seq_s or chunk.token_s or chunk.chunk_s or chunk.token_read_s
        return not (self.clip_tokens or self.decode_seqs_s.any() or of_chunks)

    def decode_s(self, columns: Mapping[str, Array]) -> Array:
        """Seconds of the decodes of ``n`` steps, by `sim.shape.shape_columns`: ``[n]``.

        Without the launches that shared prefixes add.
        """
        seqs = columns["decode_seqs"]
        of_seqs = seqs.astype(np.int64)
        seconds = self.decode_seqs_s[of_seqs]
        for cap, rate_s in self.decode_token_s.items():
            reach = columns["decode_context_tokens" if cap is None else clip_columns(cap)[0]]
            beyond = self.seq_tokens * (1 if cap is None else clip_layers(cap)) * seqs
            seconds = seconds + rate_s[of_seqs] * (reach + beyond)
        if self.curves is not None:
            seconds = seconds + self.curves.decode_s(seqs, columns["decode_context_tokens"])
        if self.shared is not None and "decode_shared_reads" in columns:
            work_s, _, tokens = self.shared.of_columns(columns)
            seconds = seconds + work_s - self.decode_token_s[None][of_seqs] * tokens
        return seconds

    def shared_fixed_s(self, columns: Mapping[str, Array]) -> Array:
        """Seconds of the launches that shared prefixes add to ``n`` steps: ``[n]``."""
        if self.shared is None or "decode_shared_reads" not in columns:
            return np.zeros(len(columns["decode_seqs"]))
        return self.shared.of_columns(columns)[1]

    def prefill_sides_s(self, columns: Mapping[str, Array]) -> tuple[Array, Array]:
        """Compute and memory seconds of the chunks of ``n`` steps: two ``[n]``."""
        chunk, tokens = self.chunk, columns["prefill_tokens"]
        compute_s = chunk.token_s * tokens + chunk.prefix_s * columns["prefill_context_tokens"]
        compute_s = compute_s + chunk.chunk_s * columns["prefill_seqs"]
        memory_s = chunk.seq_s * columns["prefill_seqs"] + chunk.token_read_s * tokens
        memory_s = memory_s + chunk.pair_read_s * columns["prefill_pairs"]
        for cap in (None, *self.clip_tokens):
            pairs, prefix = columns["prefill_pairs"], columns["prefill_context_tokens"]
            if cap is not None:
                prefix, pairs = (columns[name] for name in clip_columns(cap)[2:])
            pair_s = chunk.pair_s.get(cap, 0.0)
            compute_s = compute_s + pair_s * (pairs + self.tile_tokens * (prefix + tokens))
            memory_s = memory_s + chunk.read_s.get(cap, 0.0) * (prefix + tokens)
        pairs, prefix = columns["prefill_pairs"], columns["prefill_context_tokens"]
        for longest, more in chunk.short.items():
            is_short = columns[clip_columns(longest)[3]] >= pairs  # none of them is clipped
            tiled = pairs + self.tile_tokens * (prefix + tokens)
            compute_s = compute_s + is_short * (more.pair_s * tiled + more.prefix_s * prefix)
            memory_s = memory_s + is_short * more.read_s * (prefix + tokens)
        return compute_s, memory_s
