"""Where a step's kernel times come from: measured tables where given, the roofline elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from costmodels.engines.attention_backends import AttentionBackend
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gemm_paths import cache_path, unpack_seconds
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.kernel_curves import core_instructions_per_s
from costmodels.hardware.links import exchange_seconds
from costmodels.hardware.roofline import OperatorSeconds, operator_seconds, tile_by_tile
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import Mixer, heads_per_kv
from costmodels.operators.attention import (
    AttentionRates,
    DecodeCurves,
    imbalance_table,
    summed_curves,
)
from costmodels.operators.chosen_kernels import ChosenKernels
from costmodels.operators.context_rates import (
    Cap,
    ChunkRates,
    ShortRates,
    chunk_rates,
    decode_rates,
    encoder_rate,
)
from costmodels.operators.operators import term_operator
from costmodels.operators.shared_prefix import SharedPrefixRates, shared_prefix_rates
from costmodels.tables.bundle import OperatorTables
from costmodels.tables.families import decode_family, family_of, prefill_family
from costmodels.tables.kinds import TableKind
from costmodels.tables.lookup import Labels
from costmodels.tables.sequences import MixerTables, chunk_fit, mixer_tables, prefill_labels
from costmodels.work import Array, Operator
from sim.errors import ScenarioError
from sim.evidence import LABELS, weakest, weakest_share

_SCORE_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class KernelTimes:
    """Prices the operators of one rank on one device."""

    shard: RankShard
    gpu: GpuSpec
    efficiency: Efficiency
    tables: OperatorTables | None = None
    constants: Mapping[TableKind, Efficiency] = field(default_factory=dict)
    """Constants of single families, used in place of ``efficiency``."""
    backend: AttentionBackend | None = None
    """Attention kernels in place of those that the constants were fitted to; ``efficiency`` is
    then the backend's."""
    shared_prefix_attention: str = "none"
    """The kernel that reads shared prefixes once (`costmodels.operators.shared_prefix`), or
    ``none``."""
    chosen: ChosenKernels = field(default_factory=ChosenKernels)
    """Kernels that the engine chooses and that are not those of the constants."""
    between_passes_s: float = 0.0
    """GPU seconds per step of the engine's own work, counted with the sampler; see
    `costmodels.engines.profile.EngineProfile`."""

    def price(self, operator: Operator) -> OperatorSeconds:
        """Price all calls of an operator in a step; raises what `operator_seconds` and tables
        raise.

        Times are those of a cool device. Compute-bound times of a table that was measured in a
        loop, on a throttled device, are converted.
        """
        if operator.kind == "attention":
            return self._price_attention(operator)
        efficiency = self._constants(self._family(operator))
        if operator.exchange is not None:
            by_roofline = exchange_seconds(operator, self.gpu, efficiency)
        elif self.chosen.prices(operator):
            by_roofline = self.chosen.price(operator, self.gpu)
        else:
            ranks = self.shard.tensor_parallel_size
            tiled = tile_by_tile(operator, efficiency)
            by_roofline = operator_seconds(tiled, self.gpu, efficiency, ranks)
            by_roofline = replace(by_roofline, operator=operator)
        found = self.tables.seconds(operator, self.shard) if self.tables else None
        if found is None:
            if self.chosen.prices(operator):
                return by_roofline
            return self._unpacked(operator, by_roofline, efficiency)
        hot = 1.0 if found.is_cool else 1 + self.efficiency.throttle_slowdown
        seconds = np.where(by_roofline.compute_bound, found.seconds / hot, found.seconds)
        around_s = self.between_passes_s if operator.kind == "sampling" else 0.0
        fixed_s = np.where(operator.rows > 0, around_s, 0.0)
        return replace(by_roofline, work_s=seconds, fixed_s=fixed_s)

    def _unpacked(
        self, operator: Operator, priced: OperatorSeconds, efficiency: Efficiency
    ) -> OperatorSeconds:
        """Add the time to unpack weights: tensor cores wait for it, and both overlap with
        reading."""
        found = unpack_seconds(operator, self.gpu)
        if found is None:
            return priced
        none = np.zeros_like(operator.rows)
        computed = operator_seconds(
            replace(operator, weight_bytes=none, activation_bytes=none, state_bytes=none),
            self.gpu,
            efficiency,
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
        """Return the weakest label of at least 5% of an operator's batch sizes; None without a
        table."""
        if operator.kind == "attention":
            found = [one for m, one in self._served if decode_family(m) == self._family(operator)]
            return weakest(self.decode_label(one) or "measured" for one in found) if found else None
        served = self.tables.seconds(operator, self.shard) if self.tables else None
        return _share_label(served.labels) if served else None

    def decode_label(self, found: MixerTables) -> str | None:
        """Return the label of a mixer's decodes, which stand for any batch; None without a
        table."""
        return _fitted(found.decode_labels()) if found.decode else None

    def prefill_label(self, mixer: Mixer, found: MixerTables) -> str | None:
        """Return the label of a mixer's prompts, which stand for any batch; None without a
        table."""
        return _fitted(prefill_labels(found.prefill, mixer)) if found.prefill else None

    def attention_rates(
        self, max_num_seqs: int, *, equal_contexts: bool = False, queries: int = 1
    ) -> AttentionRates:
        """Return the attention rates of steps of up to ``max_num_seqs`` decodes with ``queries``
        each.

        The schedule of decode kernels and the query tiles of prefill kernels are those of
        grouped-query attention, for every kind of layer.
        """
        token_s, seqs_s, curves = self._decodes(max_num_seqs, equal_contexts, queries)
        prefill, decode = self._constants("prefill_attention"), self._constants("decode_attention")
        return AttentionRates(
            max_num_seqs=max_num_seqs,
            decode_token_s=token_s,
            decode_seqs_s=seqs_s,
            curves=curves,
            chunk=self._chunk_rates(),
            tile_tokens=prefill.attention_query_tile_tokens / 2,
            seq_tokens=decode.decode_seq_tokens,
            shared=self._shared_rates(decode, curves),
            mixed_token_s=self._mixed_rates(),
        )

    def mixer_tables(self, mixer: Mixer) -> MixerTables | None:
        """Return the tables that serve a kind of layer; None if none does."""
        return next((found for one, found in self._served if one == mixer), None)

    @cached_property
    def _served(self) -> list[tuple[Mixer, MixerTables]]:
        if self.tables is None:
            return []
        local = self.shard.local
        found = [(m, mixer_tables(self.tables, m, local.precision)) for m, _ in local.mixers]
        return [(mixer, one) for mixer, one in found if one.decode or one.prefill]

    def _family(self, operator: Operator) -> TableKind:
        return family_of(operator, tuple(mixer for mixer, _ in self.shard.local.mixers))

    def _constants(self, family: TableKind) -> Efficiency:
        return self.constants.get(family, self.efficiency)

    def _price_attention(self, operator: Operator) -> OperatorSeconds:
        """Price a launch, or attention work by the roofline; tables of decodes know the launch."""
        family = self._family(operator)
        ranks = self.shard.tensor_parallel_size
        priced = operator_seconds(operator, self.gpu, self._constants(family), ranks)
        launches = [one.launch_s for m, one in self._served if decode_family(m) == family]
        launches = [launch_s for launch_s in launches if launch_s]
        if not launches:
            return priced
        fixed_s = operator.calls * operator.launches * min(launches)
        return replace(priced, fixed_s=np.where(operator.rows > 0, fixed_s, 0.0))

    def _decodes(
        self, max_num_seqs: int, equal_contexts: bool, queries: int = 1
    ) -> tuple[dict[Cap, Array], Array, DecodeCurves | None]:
        """Return the decode seconds per context token by cap, the seconds of sequences, and the
        curves.

        The first two are ``[max_num_seqs + 1]`` each: the time per token is longer by the idle time
        that unequal contexts leave on SMs; the time of sequences is what they take beyond it. The
        curves hold what is not linear in the context.

        Several queries of a sequence read its context once, and each computes with it. Tables were
        measured with one query: with several, the compute side may be the longer one.
        """
        found: dict[Cap, Array] = {}
        curves: list[DecodeCurves] = []
        seqs_s = np.zeros(max_num_seqs + 1)
        seqs = np.arange(max_num_seqs + 1)
        seq_tokens = self._constants("decode_attention").decode_seq_tokens
        for mixer, count in self.shard.local.mixers:
            imbalance = self.decode_imbalance(mixer.kv_heads, max_num_seqs, equal_contexts)
            tables = self.mixer_tables(mixer)
            if tables and tables.decode:
                # Tables were measured with equal contexts.
                measured = self.decode_imbalance(mixer.kv_heads, max_num_seqs, equal_contexts=True)
                idle = imbalance / measured
                computed_s = self._computed_s(mixer, count, queries)
                if tables.cap_tokens is None and len(tables.contexts) > 1:
                    curve = _curves(tables, max_num_seqs, count, idle)
                    curves.append(_at_least(curve, computed_s) if queries > 1 else curve)
                    continue
                fit = tables.decode_fit(max_num_seqs, seq_tokens)
                if fit.token_s.any():
                    of_table, token_s = tables.cap_tokens, count * fit.token_s * idle
                    if queries > 1:
                        token_s = np.maximum(token_s, computed_s)
                    found[of_table] = found.get(of_table, 0.0) + token_s
                seqs_s = seqs_s + count * fit.seqs_s
                continue
            price = self._decode_price(mixer)
            served = self.chosen.served(mixer)
            rates = decode_rates(self.shard, price, ((served, count),), queries)
            for cap, seconds in rates.token_s.items():
                found[cap] = found.get(cap, 0.0) + seconds * imbalance
            scores = self._scores_of(mixer, count)
            if scores:
                scores_s = np.full(max_num_seqs + 1, queries * self._moved_s(scores))
                found[None] = found.get(None, 0.0) + scores_s
            seqs_s = seqs_s + rates.seq_s * seqs
        return found, seqs_s, summed_curves(curves)

    def _computed_s(self, mixer: Mixer, count: int, queries: int) -> float:
        """Return the compute seconds per context token of ``count`` layers, from the terms of
        whole contexts."""
        price = self._decode_price(mixer)
        flops = [
            replace(term, bytes=0.0)
            for term in mixer.attention(self.shard.local.precision).decode
            if term.clip is None
        ]
        units = np.array([float(queries)])
        return sum(price(term_operator(term, count, units, units)) for term in flops)

    @property
    def score_bytes(self) -> float:
        """Bytes of scores to and from device memory per pair of a causal prompt, all layers.

        Nothing is skipped for the mask, so a pair costs twice as much as in a decode.
        """
        return 2 * sum(self._scores_of(mixer, n) for mixer, n in self.shard.local.mixers)

    def _scores_of(self, mixer: Mixer, layers: int) -> float:
        """Return the bytes of scores per pair of ``layers``; 0 unless a backend writes scores."""
        if self.backend is None or not isinstance(mixer, Gqa):
            return 0.0
        return float(_SCORE_BYTES * self.backend.score_passes * mixer.heads * layers)

    def _moved_s(self, num_bytes: float) -> float:
        return num_bytes / (self.gpu.hbm_bytes_per_s * self.efficiency.attention_memory)

    def decode_imbalance(self, kv_heads: int, max_num_seqs: int, equal_contexts: bool) -> Array:
        """Return decode attention's time over that of an even spread: ``[max_num_seqs + 1]``."""
        if self.gpu.num_sms is None:
            return np.ones(max_num_seqs + 1)
        last_sm = imbalance_table(
            max_num_seqs, kv_heads, self.gpu.num_sms, equal_contexts=equal_contexts
        )
        return 1 + self._constants("decode_attention").attention_imbalance * (last_sm - 1)

    def _chunk_rates(self) -> ChunkRates:
        """Return the rates of prefill attention; tables replace all work of layers they cover."""
        pair_s: dict[Cap, float] = {}
        read_s: dict[Cap, float] = {}
        short: dict[int, ShortRates] = {}
        token_read_s = chunk_s = prefix_s = seq_s = 0.0
        constants = self._constants("prefill_attention")
        token_s = encoder_rate(self.shard, self._work_price("prefill_attention", constants))
        hot = 1 + self.efficiency.throttle_slowdown
        tile_tokens = constants.attention_query_tile_tokens / 2
        for mixer, count in self.shard.local.prompt_mixers:
            tables = self.mixer_tables(mixer)
            if tables and tables.prefill:
                constants = self._constants(decode_family(mixer))
                launch_s = tables.launch_s or constants.attention_fixed_s
                fit = chunk_fit(tables.prefill, mixer, tile_tokens, launch_s)
                weight = count if tables.prefill.table.meta.is_cool else count / hot
                of_table = tables.cap_tokens
                pair_s[of_table] = pair_s.get(of_table, 0.0) + weight * fit.pair_s
                token_s += weight * fit.token_s
                chunk_s += weight * fit.chunk_s
                prefix_s += weight * fit.prefix_s
                continue
            served = self.chosen.served(mixer)
            rates = chunk_rates(self.shard, self._prefill_price(mixer), ((served, count),))
            for sums, more in ((pair_s, rates.pair_s), (read_s, rates.read_s)):
                for cap, seconds in more.items():
                    sums[cap] = sums.get(cap, 0.0) + seconds
            token_s, prefix_s = token_s + rates.token_s, prefix_s + rates.prefix_s
            seq_s, token_read_s = seq_s + rates.seq_s, token_read_s + rates.token_read_s
            for longest, of_short in rates.short.items():
                short[longest] = short[longest] + of_short if longest in short else of_short
        writes_scores = self.backend is not None and self.backend.score_passes > 0
        if writes_scores:  # nothing is skipped for a causal mask: twice the pairs that count
            pair_s = {cap: 2 * seconds for cap, seconds in pair_s.items()}
        return ChunkRates(
            pair_read_s=self._moved_s(self.score_bytes) if writes_scores else 0.0,
            pair_s=pair_s,
            token_s=token_s,
            chunk_s=chunk_s,
            prefix_s=prefix_s,
            token_read_s=token_read_s,
            read_s=read_s,
            seq_s=seq_s,
            short=short,
        )

    def _prefill_price(self, mixer: Mixer) -> Callable[[Operator], float]:
        family = prefill_family(mixer)
        own = self.chosen.prefill_constants(mixer, self._constants(family), self.gpu)
        return self._work_price(family, own)

    def _mixed_rates(self) -> dict[Cap, float]:
        """Return the compute seconds per context token that decodes add to steps with prompts."""
        found: dict[Cap, float] = {}
        local = self.shard.local
        for mixer, count in local.mixers:
            price = self._prefill_price(mixer)
            more = self.chosen.mixed_s(mixer, count, local.precision, price)
            for cap, seconds in more.items():
                found[cap] = found.get(cap, 0.0) + seconds
        return found

    def _decode_price(self, mixer: Mixer) -> Callable[[Operator], float]:
        """Return the price of decode work: the slower of the roofline and cores that unpack a
        narrow cache."""
        family = decode_family(mixer)
        constants = self.chosen.decode_constants(mixer, self._constants(family), self.gpu)
        if self.backend and self.backend.decode:
            constants = self.backend.decode
        by_roofline = self._work_price(family, constants)
        heads = heads_per_kv(mixer)
        return lambda operator: max(
            by_roofline(operator), self._cache_instructions_s(operator, heads)
        )

    @property
    def cores_bind_decode(self) -> bool:
        """Whether decode attention waits for the cores that unpack its cache."""
        local, one = self.shard.local, np.ones(1)
        for mixer, count in local.mixers:
            tables = self.mixer_tables(mixer)
            if tables and tables.decode:
                continue
            price = self._work_price(decode_family(mixer))
            for term in mixer.attention(local.precision).decode:
                operator = term_operator(term, count, one, one)
                heads = heads_per_kv(mixer)
                if self._cache_instructions_s(operator, heads) > price(operator):
                    return True
        return False

    def _cache_instructions_s(self, operator: Operator, heads_per_kv: float) -> float:
        """Return the seconds to unpack a narrow cache while the tensor cores run: for each of the
        ``heads_per_kv`` query heads, or once for all."""
        path = cache_path(self.shard.local.precision.kv)
        rate = core_instructions_per_s(self.gpu)
        if path is None or rate is None or operator.name != "attention":
            return 0.0
        # Two FLOPs per element and query head.
        elements = operator.calls * float(operator.flops[0]) / 2
        if path.shares_unpacking:
            elements /= heads_per_kv
        return path.kv_instructions * elements / rate

    def _work_price(
        self, family: TableKind, constants: Efficiency | None = None
    ) -> Callable[[Operator], float]:
        """Return the roofline's price of an operator's work, all its calls."""
        ranks, efficiency = self.shard.tensor_parallel_size, constants or self._constants(family)

        def price(operator: Operator) -> float:
            return float(operator_seconds(operator, self.gpu, efficiency, ranks).work_s[0])

        return price

    def _shared_rates(
        self, decode: Efficiency, curves: DecodeCurves | None
    ) -> SharedPrefixRates | None:
        if curves is not None and self.shared_prefix_attention != "none":
            raise ScenarioError(
                f"engine.shared_prefix_attention {self.shared_prefix_attention} is not priced from "
                "measured decode attention: set engine.operators' decode_attention to fitted"
            )
        return shared_prefix_rates(
            self.shared_prefix_attention,
            self.shard,
            decode,
            self.gpu.num_sms,
            self._work_price("decode_attention"),
        )


def _curves(tables: MixerTables, max_num_seqs: int, layers: int, idle: Array) -> DecodeCurves:
    """Return the decode curves of ``layers``; the part that grows with the context is multiplied
    by ``idle``."""
    seconds = tables.decode_seconds_at(max_num_seqs)
    least = seconds[:, :1]
    seconds = layers * (least + (seconds - least) * idle[:, None])
    # Contexts shorter than any measured take as long as the shortest.
    return DecodeCurves(
        contexts=np.append(0.0, tables.contexts),
        seconds=np.concatenate([seconds[:, :1], seconds], axis=1),
    )


def _at_least(curves: DecodeCurves, token_s: float) -> DecodeCurves:
    """Return the curves, raised to at least ``token_s`` per token of context."""
    seqs = np.arange(len(curves.seconds))[:, None]
    return replace(
        curves, seconds=np.maximum(curves.seconds, token_s * seqs * curves.contexts[None, :])
    )


def _share_label(labels: Labels) -> str:
    shares = {label: float((labels == label).mean()) for label in LABELS}
    return weakest_share(shares) or LABELS[0]


def _fitted(labels: Labels) -> str:
    """Return the label of rates that stand for many batches: ``fitted`` at best."""
    return weakest((_share_label(labels), "fitted"))
