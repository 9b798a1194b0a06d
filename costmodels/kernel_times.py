"""Where a step's kernel times come from: measured tables where given, the roofline elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.attention_backends import AttentionBackend
from costmodels.attention_rates import AttentionRates
from costmodels.context_rates import Cap, ChunkRates, chunk_rates, decode_rates
from costmodels.efficiency import Efficiency
from costmodels.evidence import LABELS
from costmodels.gpu_spec import GpuSpec
from costmodels.kernel_curves import core_instructions_per_s
from costmodels.layers.gqa import Gqa
from costmodels.links import exchange_seconds
from costmodels.operator_tables.bundle import OperatorTables, attention_heads, covers_attention
from costmodels.operators import term_operator
from costmodels.parallel import RankShard
from costmodels.precision_paths import cache_path, unpack_seconds
from costmodels.roofline import OperatorSeconds, operator_seconds
from costmodels.split_kv import imbalance_table
from costmodels.work import Array, Operator
from sim.errors import ScenarioError

# Contexts, and chunks on cached prefixes, between which a table's attention is taken as linear.
_DECODE_CONTEXTS = (512.0, 8192.0)
_CHUNKS = np.array([256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0])
_LABEL_SHARE = 0.05
_SCORE_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Prices the operators of one rank on one device."""

    shard: RankShard
    gpu: GpuSpec
    efficiency: Efficiency
    tables: OperatorTables | None = None
    backend: AttentionBackend | None = None
    """Attention kernels in place of those that the constants were fitted to; ``efficiency`` is its
    own."""

    def price(self, operator: Operator) -> OperatorSeconds:
        """All calls of an operator in a step; raises what `operator_seconds` and tables raise.

        Tables are measured in a loop, so what compute bounds ran on a throttled device; times
        here are of a cool one.
        """
        if operator.exchange is not None:
            return exchange_seconds(operator, self.gpu, self.efficiency)
        by_roofline = operator_seconds(
            operator, self.gpu, self.efficiency, self.shard.tensor_parallel_size
        )
        found = self.tables.seconds(operator, self.shard) if self.tables else None
        if found is None or operator.kind == "attention":
            return self._unpacked(operator, by_roofline)
        hot = 1 + self.efficiency.throttle_slowdown
        seconds = np.where(by_roofline.compute_bound, found[0] / hot, found[0])
        return replace(by_roofline, work_s=seconds, fixed_s=np.zeros_like(seconds))

    def _unpacked(self, operator: Operator, priced: OperatorSeconds) -> OperatorSeconds:
        """Tensor cores wait while the main loop unpacks weights; both overlap with reading."""
        found = unpack_seconds(operator, self.gpu)
        if found is None:
            return priced
        none = np.zeros_like(operator.rows)
        computed = operator_seconds(
            replace(operator, weight_bytes=none, activation_bytes=none, state_bytes=none),
            self.gpu,
            self.efficiency,
            self.shard.tensor_parallel_size,
        )
        in_loop, before = (operator.calls * seconds for seconds in found)
        compute_s = computed.work_s + in_loop
        memory_s = np.where(priced.compute_bound, 0.0, priced.work_s)
        return replace(
            priced,
            work_s=np.maximum(np.maximum(compute_s, memory_s), priced.work_s) + before,
            compute_bound=compute_s > memory_s,
        )

    def label(self, operator: Operator) -> str | None:
        """The weakest label of at least 5% of an operator's batch sizes; None without a table."""
        found = self.tables.seconds(operator, self.shard) if self.tables else None
        if found is None or operator.exchange is not None:
            return None
        shares = {label: float((found[1] == label).mean()) for label in LABELS}
        return next(label for label in reversed(LABELS) if shares[label] >= _LABEL_SHARE)

    def attention_rates(self, max_num_seqs: int, *, equal_contexts: bool = False) -> AttentionRates:
        """Attention of steps of up to so many decoding sequences.

        The schedule of decode kernels and the query tiles of prefill kernels are those of
        grouped-query attention, for every kind of layer.
        """
        return AttentionRates(
            max_num_seqs=max_num_seqs,
            decode_token_s=self._decode_token_s(max_num_seqs, equal_contexts),
            decode_seq_s=decode_rates(self.shard, self._decode_work_s).seq_s,
            chunk=self._chunk_rates(),
            tile_tokens=self.efficiency.attention_query_tile_tokens / 2,
            seq_tokens=self.efficiency.decode_seq_tokens,
        )

    def _decode_token_s(self, max_num_seqs: int, equal_contexts: bool) -> dict[Cap, Array]:
        """By cap; evenly spread, longer by what unequal contexts leave SMs idle."""
        tables = self._attention_tables
        table = tables.decode_attention if tables else None
        if table is not None and self.shard.layout.context_ranks > 1:
            raise ScenarioError(
                "measured attention tables are not priced with context parallelism: use "
                "engine.operators fitted"
            )
        found: dict[Cap, Array] = {}
        rates = decode_rates(self.shard, self._decode_work_s)
        for kv_heads, by_cap in rates.by_kv_heads.items():
            if table is None:
                imbalance = self.decode_imbalance(kv_heads, max_num_seqs, equal_contexts)
                for cap, seconds in by_cap.items():
                    found[cap] = found.get(cap, 0.0) + seconds * imbalance
                if self._scoring:
                    scores_s = np.full(max_num_seqs + 1, self._moved_s(self._scores_of(kv_heads)))
                    found[None] = found.get(None, 0.0) + scores_s
                continue
            seqs = np.maximum(np.arange(max_num_seqs + 1, dtype=np.float64), 1.0)
            heads = attention_heads(self.shard)
            short_s, long_s = (
                table.seconds(seqs, np.full_like(seqs, context), heads)[0]
                for context in _DECODE_CONTEXTS
            )
            span = seqs * (_DECODE_CONTEXTS[1] - _DECODE_CONTEXTS[0])
            a_token_s = self.shard.local.num_layers * np.maximum(long_s - short_s, 0.0) / span
            imbalance = self.decode_imbalance(kv_heads, max_num_seqs, equal_contexts)
            measured = self.decode_imbalance(kv_heads, max_num_seqs, equal_contexts=True)
            found[None] = a_token_s * imbalance / measured
        return found

    @property
    def score_bytes(self) -> float:
        """Bytes of scores, to and from device memory, for one pair of a causal prompt, all layers.

        Nothing is skipped for the mask, so twice those of a decode's pair.
        """
        return 2 * sum(self._scores_of(heads) for heads in {m.kv_heads for m, _ in self._scoring})

    @property
    def _scoring(self) -> list[tuple[Gqa, int]]:
        if self.backend is None or not self.backend.score_passes:
            return []
        mixers = self.shard.local.mixers
        return [(mixer, count) for mixer, count in mixers if isinstance(mixer, Gqa)]

    def _scores_of(self, kv_heads: int) -> float:
        """Of one pair, in the layers with so many KV heads."""
        passes = self.backend.score_passes if self.backend else 0
        heads = sum(m.heads * count for m, count in self._scoring if m.kv_heads == kv_heads)
        return float(_SCORE_BYTES * passes * heads)

    def _moved_s(self, num_bytes: float) -> float:
        return num_bytes / (self.gpu.hbm_bytes_per_s * self.efficiency.attention_memory)

    @property
    def _attention_tables(self) -> OperatorTables | None:
        return self.tables if self.tables and covers_attention(self.shard) else None

    def decode_imbalance(self, kv_heads: int, max_num_seqs: int, equal_contexts: bool) -> Array:
        """How much longer decode attention takes than evenly spread: ``[max_num_seqs + 1]``."""
        if self.gpu.num_sms is None:
            return np.ones(max_num_seqs + 1)
        last_sm = imbalance_table(
            max_num_seqs, kv_heads, self.gpu.num_sms, equal_contexts=equal_contexts
        )
        return 1 + self.efficiency.attention_imbalance * (last_sm - 1)

    def _chunk_rates(self) -> ChunkRates:
        """Of prefill attention; a table, where it covers the layers, in place of the pairs."""
        rates = chunk_rates(self.shard, self._work_s)
        tables = self._attention_tables
        table = tables.prefill_attention if tables else None
        if self.backend is not None and self.backend.score_passes:
            # Nothing is skipped for a causal mask: twice the pairs that count.
            pair_s = {cap: 2 * seconds for cap, seconds in rates.pair_s.items()}
            return replace(rates, pair_s=pair_s, pair_read_s=self._moved_s(self.score_bytes))
        if table is None:
            return rates
        one, none = np.ones_like(_CHUNKS), np.zeros_like(_CHUNKS)
        seconds = table.seconds(one, _CHUNKS, none, attention_heads(self.shard))[0]
        # Long chunks count most: a rate weighs as much as the time it explains.
        tile_tokens = self.efficiency.attention_query_tile_tokens / 2
        tiled = _CHUNKS * (_CHUNKS + 1) / 2 + tile_tokens * _CHUNKS
        rate_s = float((seconds * tiled).sum() / (tiled * tiled).sum())
        hot = 1 + self.efficiency.throttle_slowdown
        return replace(rates, pair_s={None: self.shard.local.num_layers * rate_s / hot})

    def _decode_work_s(self, operator: Operator) -> float:
        if self.backend is None or self.backend.decode is None:
            seconds = self._work_s(operator)
        else:
            ranks = self.shard.tensor_parallel_size
            priced = operator_seconds(operator, self.gpu, self.backend.decode, ranks)
            seconds = float(priced.work_s[0])
        return max(seconds, self._cache_instructions_s(operator))

    @property
    def cores_bind_decode(self) -> bool:
        """Whether decode attention waits for the cores that unpack its cache."""
        local = self.shard.local
        terms = [(t, n) for m, n in local.mixers for t in m.attention(local.precision).decode]
        one = np.ones(1)
        operators = [term_operator(term, count, one, one) for term, count in terms]
        return any(self._cache_instructions_s(op) > self._work_s(op) for op in operators)

    def _cache_instructions_s(self, operator: Operator) -> float:
        """Unpacking keys and values of a narrow cache, for each query head, beside tensor cores."""
        path = cache_path(self.shard.local.precision.kv)
        rate = core_instructions_per_s(self.gpu)
        if path is None or rate is None or operator.name != "attention":
            return 0.0
        # Two FLOPs an element and query head.
        elements = operator.calls * float(operator.flops[0]) / 2
        return path.kv_instructions * elements / rate

    def _work_s(self, operator: Operator) -> float:
        """Seconds of an operator's work by the roofline, all calls."""
        ranks = self.shard.tensor_parallel_size
        return float(operator_seconds(operator, self.gpu, self.efficiency, ranks).work_s[0])
