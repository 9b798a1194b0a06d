"""Lookups by kind, in the terms of each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from costmodels.tables.ideal import attention_work, experts_work, roofline_seconds
from costmodels.tables.kinds import COLLECTIVES, TableKind
from costmodels.tables.lookup import Labels, Lookup, columns_of
from costmodels.tables.table import OperatorTable
from costmodels.work import Array

# Beyond these, a tile is a small part of the rows.
_RANGES = ((0.0, 128.0), (128.0, 1024.0), (1024.0, 4096.0))
_FEWEST = 12
"""Fewest points in a range from which steps are inferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSteps:
    """The ranges of rows, (above, up to), in which time is a step function of rows."""

    ranges: tuple[tuple[float, float], ...]

    def snap(self, rows: Array, measured: Array) -> Array:
        """Snap rows in these ranges to the measured count on their side of a tile's end: ``[n]``.

        The tile's end lies between the two measured counts around the rows. ``measured`` ascends.
        """
        steps = np.zeros(len(rows), np.bool_)
        for above, up_to in self.ranges:
            steps |= (rows > above) & (rows <= up_to)
        place = np.searchsorted(measured, rows)
        steps &= (place > 0) & (place < len(measured))
        place = np.clip(place, 1, len(measured) - 1) if len(measured) > 1 else place * 0
        low, high = measured[np.maximum(place - 1, 0)], measured[place]
        side = np.where(rows <= tile_end(low, high), low, high)
        return np.where(steps & (rows != high), side, rows)


def find_steps(rows: Array, seconds: Array, bound_s: Array, curves: Sequence[slice]) -> RowSteps:
    """Return the ranges in which steps predict points from their neighbors better than lines do.

    ``rows``, ``seconds`` and the roofline's ``bound_s`` are those of all points, ``[n]``, with the
    points of a curve together and ascending.
    """
    inner = [np.arange(c.start + 1, c.stop - 1, dtype=np.int64) for c in curves]
    middle = np.concatenate([np.empty(0, np.int64), *inner])
    before, after = middle - 1, middle + 1
    span = bound_s[after] - bound_s[before]
    is_flat = np.abs(span) <= 1e-6 * bound_s[before]
    log_span = np.log(rows[after] / rows[before])
    share = np.where(
        is_flat,
        np.log(rows[middle] / rows[before]) / log_span,
        (bound_s[middle] - bound_s[before]) / np.where(is_flat, 1.0, span),
    )
    line_s = (1 - share) * seconds[before] + share * seconds[after]
    is_low = rows[middle] <= tile_end(rows[before], rows[after])
    step_s = np.where(is_low, seconds[before], seconds[after])
    line, step = (np.abs(found / seconds[middle] - 1) for found in (line_s, step_s))
    chosen = []
    for above, up_to in _RANGES:
        inside = (rows[middle] > above) & (rows[middle] <= up_to)
        if inside.sum() >= _FEWEST and step[inside].mean() < line[inside].mean():
            chosen.append((above, up_to))
    return RowSteps(ranges=tuple(chosen))


def tile_end(low: Array, high: Array) -> Array:
    """Return the multiple of the largest power of two from ``low`` to below ``high``, where a
    tile ends that divides the rows."""
    end, found = low.copy(), np.zeros(len(low), np.bool_)
    for power in range(20, -1, -1):
        size = float(2**power)
        multiple = np.floor((high - 1) / size) * size
        fits = ~found & (multiple >= low) & (multiple > 0)
        end, found = np.where(fits, multiple, end), found | fits
    return end


class SteppedLookup(Lookup):
    """A lookup whose kernels may work in tiles of its only axis, ``rows_axis``."""

    rows_axis = ""

    def __init__(self, table: OperatorTable) -> None:
        super().__init__(table)
        curves = [self.curve_rows(curve) for curve in range(self.num_curves)]
        rows, bound_s = table.columns[self.rows_axis], self._ideal(table.columns)
        self.steps = find_steps(rows, table.seconds, bound_s, curves)

    def shape_seconds(
        self,
        curve: Mapping[str, float],
        axes: Mapping[str, Array],
        ideal_s: Array | None = None,
    ) -> tuple[Array, Labels]:
        """Return seconds and label as `Lookup` does, with rows snapped to tiles.

        If the table's kernels work in tiles, rows count as the measured ones on their side of the
        tile's end, in the nearest curve.
        """
        rows, nearest = axes[self.rows_axis], self._curves_near(curve)[0][0]
        measured = self.table.columns[self.rows_axis][self.curve_rows(int(nearest))]
        snapped = self.steps.snap(rows, measured)
        if ideal_s is not None:
            at_rows = self._ideal({**columns_of(curve, len(rows)), self.rows_axis: rows})
            at_snapped = self._ideal({**columns_of(curve, len(rows)), self.rows_axis: snapped})
            ideal_s = ideal_s * np.where(rows > 0, at_snapped / np.maximum(at_rows, 1e-30), 1.0)
        seconds, labels = super().shape_seconds(curve, {self.rows_axis: snapped}, ideal_s)
        is_between = (snapped != rows) & (labels == "measured")
        return seconds, np.where(is_between, "fitted", labels)


class GemmTable(SteppedLookup):
    """Times of GEMMs ``[rows, inner] x [inner, outer]``."""

    rows_axis = "m"

    def seconds(self, rows: Array, inner: int, outer: int) -> tuple[Array, Labels]:
        """Return seconds of one call and label, by number of rows: ``[n]`` both."""
        return self.shape_seconds({"n": outer, "k": inner}, {"m": rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The experts of one MoE layer; ``inter`` is the width before any split over ranks."""

    hidden: int
    inter: int
    top_k: int
    num_experts: int
    tp: int = 1
    ep: int = 1


class GroupedGemmTable(SteppedLookup):
    """All expert kernels of one MoE layer: sorting tokens, both GEMMs, activation, weighted sum."""

    rows_axis = "tokens"

    def seconds(self, tokens: Array, experts: ExpertShape) -> tuple[Array, Labels]:
        """Return seconds of one layer and label, by number of tokens: ``[n]`` both."""
        return self.shape_seconds(asdict(experts), {"tokens": tokens})

    def routed_seconds(
        self, routed: Array, reached: Array, experts: ExpertShape
    ) -> tuple[Array, Labels]:
        """Return seconds and label of ``routed`` rows on one rank that reach ``reached`` of its
        experts.

        It does not matter how they were spread when measured: only the share of the roofline's
        bound counts.
        """
        precision = self.table.meta.precision
        shape = {name: np.full(len(routed), float(size)) for name, size in asdict(experts).items()}
        work = experts_work(shape, precision, routed, reached)
        bound_s = roofline_seconds(*work, self.gpu, precision)
        tokens = routed * experts.ep / experts.top_k
        return self.shape_seconds(asdict(experts), {"tokens": tokens}, bound_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads of one rank; ``window`` 0 is full attention."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int = 0


class DecodeAttentionTable(Lookup):
    """Attention of one new token per sequence over its context."""

    def seconds(self, seqs: Array, context_tokens: Array, heads: Heads) -> tuple[Array, Labels]:
        """Return seconds of one layer and label: ``[n]`` both, for sequences of equal context.

        ``context_tokens`` counts the new token.
        """
        axes = {"seqs": seqs, "context_tokens": context_tokens}
        return self.shape_seconds(asdict(heads), axes)

    def decode_seconds(self, seqs: Array, context_sum: Array, heads: Heads) -> tuple[Array, Labels]:
        """Return seconds and label from the batch's sum of contexts, taken as spread evenly."""
        return self.seconds(seqs, context_sum / np.maximum(seqs, 1.0), heads)


class PrefillAttentionTable(Lookup):
    """Attention of new tokens of each prompt over themselves and a cached prefix."""

    def __init__(self, table: OperatorTable) -> None:
        super().__init__(table)
        self._has_prefixes = bool(table.columns["prefix_tokens"].any())

    def seconds(
        self, seqs: Array, new_tokens: Array, prefix_tokens: Array, heads: Heads
    ) -> tuple[Array, Labels]:
        """Return seconds of one layer and label: ``[n]`` both, for equal prompts.

        ``new_tokens`` and ``prefix_tokens`` are those of one prompt. A table without prefixes
        answers with the utilization of prompts with equal numbers of tokens and pairs.
        """
        new_sum = seqs * new_tokens
        pairs = new_sum * (prefix_tokens + (new_tokens + 1) / 2)
        kv_sum = seqs * (prefix_tokens + new_tokens)
        if self._has_prefixes or heads.window or not prefix_tokens.any():
            axes = {"seqs": seqs, "new_tokens": new_tokens, "prefix_tokens": prefix_tokens}
            return self.shape_seconds(asdict(heads), axes)
        return self.prefill_seconds(new_sum, pairs, kv_sum, heads)

    def prefill_seconds(
        self, new_sum: Array, pairs: Array, kv_sum: Array, heads: Heads
    ) -> tuple[Array, Labels]:
        """Return seconds and label from sums: new tokens, query-key pairs, KV tokens read (prefix
        and new).

        The three sums belong to exactly one batch of equal prompts; its utilization is used.
        """
        called = np.maximum(new_sum, 1.0)
        if self._has_prefixes:
            new_tokens = (pairs - new_sum / 2) / np.maximum(kv_sum - new_sum / 2, 0.5)
            prefix_tokens = np.maximum(pairs / called - (new_tokens + 1) / 2, 0.0)
        else:
            new_tokens, prefix_tokens = 2 * pairs / called - 1, np.zeros_like(pairs)
        axes = {
            "seqs": new_sum / np.maximum(new_tokens, 1.0),
            "new_tokens": new_tokens,
            "prefix_tokens": prefix_tokens,
        }
        shape = {name: np.full(len(pairs), float(size)) for name, size in asdict(heads).items()}
        precision = self.table.meta.precision
        work = attention_work(shape, precision, pairs, kv_sum, new_sum)
        ideal_s = roofline_seconds(*work, self.gpu, precision)
        return self.shape_seconds(asdict(heads), axes, ideal_s)

    def _coordinates(self, axes: Mapping[str, Array]) -> list[Array]:
        # Few prefixes are measured, so they are outermost: where a point is missing, its neighbors
        # in the number of new tokens are nearer. A prefix may be 0 tokens.
        return [
            np.log1p(axes["prefix_tokens"]),
            np.log(axes["new_tokens"]),
            np.log(axes["seqs"]),
        ]

    def _axes(self, coordinates: Sequence[Array]) -> dict[str, Array]:
        prefix_tokens, new_tokens, seqs = coordinates
        return {
            "new_tokens": np.exp(new_tokens),
            "prefix_tokens": np.expm1(prefix_tokens),
            "seqs": np.exp(seqs),
        }


class MlaDecodeTable(Lookup):
    """Absorbed latent attention of one new token per sequence over its context."""

    def seconds(
        self, seqs: Array, context_tokens: Array, *, heads: int, kv_lora_rank: int, rope_dim: int
    ) -> tuple[Array, Labels]:
        """Return seconds of one layer and label: ``[n]`` both, for sequences of equal context."""
        curve = {"heads": heads, "kv_lora_rank": kv_lora_rank, "rope_dim": rope_dim}
        return self.shape_seconds(curve, {"seqs": seqs, "context_tokens": context_tokens})


class DeltaRuleTable(Lookup):
    """Linear attention with the delta rule, over new tokens of each sequence."""

    def seconds(
        self, seqs: Array, tokens: Array, *, heads: int, head_k_dim: int, head_v_dim: int
    ) -> tuple[Array, Labels]:
        """Return seconds of one layer and label: ``[n]`` both, for sequences of ``tokens`` new
        tokens each."""
        curve = {"heads": heads, "head_k_dim": head_k_dim, "head_v_dim": head_v_dim}
        return self.shape_seconds(curve, {"seqs": seqs, "tokens": tokens})


class ExchangeTable(Lookup):
    """An exchange between all ranks of one node."""

    def seconds(self, num_bytes: Array, ranks: int) -> tuple[Array, Labels]:
        """Return seconds of one call and label, by the bytes of one rank's input: ``[n]`` both."""
        return self.shape_seconds({"ranks": ranks}, {"bytes": num_bytes})


class AllReduceTable(ExchangeTable):
    """A sum over all ranks of one node."""


class ElementwiseTable(Lookup):
    """Kernels that read and write rows."""

    def seconds(self, rows: Array, bytes_per_row: float) -> tuple[Array, Labels]:
        """Return seconds of one call and label, by number of rows: ``[n]`` both."""
        return self.shape_seconds({"bytes_per_row": bytes_per_row}, {"rows": rows})


class EmbeddingTable(Lookup):
    """Gathers of rows of the token table."""

    def seconds(self, rows: Array, width: int, vocab: int) -> tuple[Array, Labels]:
        """Return seconds of one call and label, by number of rows: ``[n]`` both."""
        return self.shape_seconds({"width": width, "vocab": vocab}, {"rows": rows})


class SamplingTable(Lookup):
    """Sampling of tokens from logits."""

    def seconds(self, rows: Array, vocab: int) -> tuple[Array, Labels]:
        """Return seconds of one call and label, by number of rows: ``[n]`` both."""
        return self.shape_seconds({"vocab": vocab}, {"rows": rows})


LOOKUPS: dict[TableKind, type[Lookup]] = {
    "gemm": GemmTable,
    "grouped_gemm": GroupedGemmTable,
    "prefill_attention": PrefillAttentionTable,
    "decode_attention": DecodeAttentionTable,
    "mla_decode": MlaDecodeTable,
    "kda_chunk": DeltaRuleTable,
    "kda_recurrent": DeltaRuleTable,
    "gdn_chunk": DeltaRuleTable,
    "gdn_recurrent": DeltaRuleTable,
    "elementwise": ElementwiseTable,
    "embedding": EmbeddingTable,
    "sampling": SamplingTable,
    **dict.fromkeys(COLLECTIVES, ExchangeTable),
    "all_reduce": AllReduceTable,
    "copy": Lookup,
    "launch": Lookup,
}
