"""Term of a step's price: exchanges between ranks that share contexts.

They split prompts by tokens, keys and values by position.

Prefill context parallelism (PCP): each rank computes its part of a chunk's tokens and needs the
keys and values of all tokens before them. These come by an all-gather before attention, or by a
ring in which the parts pass from rank to rank while attention computes (`context_parallel`). All
ranks compute all decodes, each over its part of the cache, and merge their outputs.

Decode context parallelism (DCP, within one tensor-parallel group): each rank holds a part of the
positions. Queries are gathered, each rank attends to its positions for all heads, and outputs are
merged: an all-gather of queries, an all-gather of softmax sums, a reduce-scatter of outputs.
Prompts on a cached prefix do the same (grouped heads), or gather the prefix (latent attention), as
in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodels.hardware.links import load_links
from costmodels.layouts.dealing import prompt_columns, prompt_share
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.mla import Mla
from costmodels.operators.kernel_times import KernelTimes
from costmodels.steps.compiled import CompiledPrices
from costmodels.steps.describe import StepRow
from costmodels.steps.evidence import beyond_measured
from costmodels.work import FRACTION_BITS, ONE, Array, Exchange, Kind, operator, slowed
from sim import accounts
from sim.clock import NS_PER_S
from sim.evidence import Source
from sim.shape import StepShape

MERGE, SHARE = "context_merge", "context_kv_exchange"
_SUM_BYTES = 4
"""Bytes per head of the softmax sums, which are gathered in 32 bits."""
_PROBE_BYTES = 1e9


class Collective(NamedTuple):
    """Exchanges of one type for all layers of a step, priced in integers."""

    fixed_ns: int = 0
    """Latency in ns, paid once there are tokens to exchange."""
    token_fixed_ns: int = 0
    """Time per token in ns, fixed point with `FRACTION_BITS` fractional bits."""
    token_bytes: float = 0.0

    def ns(self, tokens: int) -> int:
        """Return the nanoseconds to exchange ``tokens``; 0 without tokens."""
        return self.fixed_ns + (tokens * self.token_fixed_ns >> FRACTION_BITS) if tokens else 0

    def seconds(self, tokens: Array) -> Array:
        """Return the unrounded seconds of ``n`` steps from their tokens: ``[n]``."""
        found = self.fixed_ns + tokens * (self.token_fixed_ns / ONE)
        return np.where(tokens > 0, found / NS_PER_S, 0.0)

    def slower(self, factor: float) -> Collective:
        """Return a copy with all times multiplied by ``factor``."""
        return self._replace(
            fixed_ns=round(self.fixed_ns * factor),
            token_fixed_ns=round(self.token_fixed_ns * factor),
        )


NOTHING = Collective()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextExchanges:
    """The exchanges of a step, each priced by the tokens that cause it; a `cost.StepTerm`."""

    num_layers: int
    ranks: int
    """Ranks that share a prompt's tokens."""
    links: tuple[Source, ...]
    """The numbers of the links."""
    merge: Collective = NOTHING
    """Merge of partial outputs, by tokens whose queries attend to a split cache."""
    merges_prompts: bool = False
    """Whether prompts on a cached prefix are merged as decodes are."""
    prefix: Collective = NOTHING
    """Gather over a tensor-parallel group, by cached tokens before chunks."""
    share: Collective = NOTHING
    """Distribution of keys and values to all ranks, by prompt tokens, cached ones included."""
    passes: int = 0
    """Passes of a ring; 0: keys and values are gathered before attention."""
    pair_fixed_ns: int = 0
    """Attention beside which a ring passes: a query-key pair in fixed point; the next: a token of
    keys and values."""
    tile_fixed_ns: int = 0

    def beside_ns(self, shape: StepShape, kernels_ns: int) -> int:
        """Return the time of the exchanges, less what a ring hides behind attention."""
        return self._merge_ns(shape) + self._share_ns(shape)

    def _merge_ns(self, shape: StepShape) -> int:
        merged_ns = self.merge.ns(self._merged_tokens(shape))
        return merged_ns + self.prefix.ns(shape.prefill_context_tokens)

    def _merged_tokens(self, shape: StepShape) -> int:
        if self.merges_prompts and shape.prefill_context_tokens:
            return shape.decode_seqs + shape.prefill_tokens
        return shape.decode_seqs

    def _share_ns(self, shape: StepShape) -> int:
        if not shape.prefill_tokens:
            return 0
        exchange_ns = self.share.ns(shape.prefill_context_tokens + shape.prefill_tokens)
        if not self.passes:
            return exchange_ns
        own = prompt_share(shape, self.ranks)
        kv_tokens = own.prefill_context_tokens + own.prefill_tokens
        attention_ns = own.prefill_pairs * self.pair_fixed_ns + kv_tokens * self.tile_fixed_ns
        # A ring of n ranks makes n - 1 passes. While each runs, the rank computes attention over
        # one of its n parts; only the last part's computation has no pass to hide.
        hidden_ns = (attention_ns >> FRACTION_BITS) * self.passes // (self.passes + 1)
        return max(exchange_ns - hidden_ns, 0)

    def beside_s(self, columns: Mapping[str, Array], kernels_s: Array) -> dict[str, Array]:
        """Return the exposed seconds of the exchanges of ``n`` steps: communication."""
        cached, tokens = columns["prefill_context_tokens"], columns["prefill_tokens"]
        merged = columns["decode_seqs"]
        if self.merges_prompts:
            merged = merged + np.where(cached > 0, tokens, 0.0)
        merged_s = self.merge.seconds(merged) + self.prefix.seconds(cached)
        shared_s = self.share.seconds(np.where(tokens > 0, cached + tokens, 0.0))
        if self.passes:
            own = prompt_columns(columns, self.ranks)
            kv_tokens = own["prefill_context_tokens"] + own["prefill_tokens"]
            attention_ns = (
                own["prefill_pairs"] * self.pair_fixed_ns + kv_tokens * self.tile_fixed_ns
            )
            hidden_s = attention_ns / ONE / NS_PER_S * self.passes / (self.passes + 1)
            shared_s = np.maximum(shared_s - hidden_s, 0.0)
        return {accounts.COMMUNICATION: merged_s + shared_s}

    def rows(self, shape: StepShape, kernels_ns: int) -> list[StepRow]:
        """Return a row for merging outputs and one for sharing keys and values, if they move
        any."""
        cached = shape.prefill_context_tokens
        merged = self._merged_tokens(shape) * self.merge.token_bytes
        merged += cached * self.prefix.token_bytes
        shared = (cached + shape.prefill_tokens) * self.share.token_bytes
        found = [(MERGE, self._merge_ns(shape), merged)]
        if shape.prefill_tokens:
            found.append((SHARE, self._share_ns(shape), shared))
        return [
            StepRow(name, self.num_layers, comm_bytes=sent, seconds=ns / NS_PER_S, bound="network")
            for name, ns, sent in found
            if sent
        ]

    def evidence(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of accounts, given those of the kernels."""
        return beyond_measured(labels, self.links)

    def sources(self) -> list[Source]:
        """Return the numbers of the links."""
        return list(self.links)

    def slower(self, factor: float) -> ContextExchanges:
        """Return a copy with all times multiplied by ``factor``."""
        times = ("merge", "prefix", "share", "pair_fixed_ns", "tile_fixed_ns")
        return slowed(self, factor, *times)


class _Heads(NamedTuple):
    """One layer's attention on one rank, in bytes per token."""

    queries: int
    outputs: int
    sums: int
    kv: float
    is_latent: bool


def context_exchanges(kernels: KernelTimes, compiled: CompiledPrices) -> ContextExchanges:
    """Price the exchanges that a rank's layout needs."""
    layout = kernels.shard.layout
    merge = prefix = share = NOTHING
    merges_prompts = False
    for heads, count in _heads(kernels):
        if layout.decode_context_parallel_size > 1:
            merge = _add(merge, *_merged_by_group(kernels, heads, count))
            if heads.is_latent:
                prefix = _add(prefix, _gathered_prefix(kernels, heads, count))
            merges_prompts |= not heads.is_latent
        if layout.prefill_context_parallel_size > 1:
            merge = _add(merge, *_merged_by_all(kernels, heads, count))
            share = _add(share, _shared(kernels, heads, count))
    ring = layout.prefill_context_parallel_mode == "ring"
    away = layout.in_node(layout.stage_gpus) < layout.stage_gpus
    passes = layout.prefill_context_parallel_size - 1 if ring else 0
    used = ("gather", "send") if passes else ("gather",)
    return ContextExchanges(
        num_layers=kernels.shard.local.num_layers,
        ranks=layout.prefill_context_parallel_size,
        links=tuple(load_links(kernels.gpu.name).sources(used, is_network=away)),
        merge=merge,
        merges_prompts=merges_prompts,
        prefix=prefix,
        share=share,
        passes=passes,
        pair_fixed_ns=compiled.prefill_pair_fixed_ns,
        tile_fixed_ns=compiled.prefill_tile_fixed_ns,
    )


def _heads(kernels: KernelTimes) -> Iterator[tuple[_Heads, int]]:
    local = kernels.shard.local
    elem = local.dtype_bytes
    for mixer, count in local.mixers:
        assert isinstance(mixer, Gqa | Mla)  # `check_layout` refuses other kinds
        latent = isinstance(mixer, Mla)
        query = mixer.latent if isinstance(mixer, Mla) else mixer.head_dim
        output = mixer.kv_lora if isinstance(mixer, Mla) else mixer.head_dim
        heads = mixer.heads
        kv_bytes = float(mixer.state(local.precision).growing)
        yield (
            _Heads(
                heads * query * elem, heads * output * elem, heads * _SUM_BYTES, kv_bytes, latent
            ),
            count,
        )


def _merged_by_group(kernels: KernelTimes, heads: _Heads, count: int) -> list[Collective]:
    """Price the gather of queries and softmax sums in a group, and the return of outputs to
    their ranks."""
    layout = kernels.shard.layout
    ranks = layout.decode_context_parallel_size
    exchange = Exchange(ranks=ranks, in_node=layout.in_node(ranks))
    moved: tuple[tuple[Kind, int], ...] = (
        ("all_gather", heads.queries),
        ("all_gather", heads.sums),
        ("reduce_scatter", heads.outputs),
    )
    return [
        _collective(kernels, kind, count, (ranks - 1) * num_bytes, exchange)
        for kind, num_bytes in moved
    ]


def _gathered_prefix(kernels: KernelTimes, heads: _Heads, count: int) -> Collective:
    layout = kernels.shard.layout
    ranks = layout.decode_context_parallel_size
    exchange = Exchange(ranks=ranks, in_node=layout.in_node(ranks))
    return _collective(kernels, "all_gather", count, (ranks - 1) / ranks * heads.kv, exchange)


def _merged_by_all(kernels: KernelTimes, heads: _Heads, count: int) -> list[Collective]:
    """Price the merge of outputs that every rank computed in part: both halves of an all-reduce."""
    ranks, exchange = _prompt_ranks(kernels)
    part = (ranks - 1) / ranks * heads.outputs
    return [
        _collective(kernels, "all_gather", count, (ranks - 1) * heads.sums, exchange),
        _collective(kernels, "reduce_scatter", count, part, exchange),
        _collective(kernels, "all_gather", count, part, exchange),
    ]


def _shared(kernels: KernelTimes, heads: _Heads, count: int) -> Collective:
    """Price the distribution of keys and values: one gather, or ring passes of one rank's part
    each."""
    ranks, exchange = _prompt_ranks(kernels)
    sent = (ranks - 1) / ranks * heads.kv
    if kernels.shard.layout.prefill_context_parallel_mode == "all_gather":
        return _collective(kernels, "all_gather", count, sent, exchange)
    # A ring is as fast as its slowest hop.
    hop = Exchange(ranks=2, in_node=2 if exchange.in_node == ranks else 1)
    return _collective(kernels, "send", count * (ranks - 1), heads.kv / ranks, hop)


def _prompt_ranks(kernels: KernelTimes) -> tuple[int, Exchange]:
    layout = kernels.shard.layout
    ranks = layout.prefill_context_parallel_size
    near = layout.in_node(ranks, layout.tensor_parallel_size)
    return ranks, Exchange(ranks=ranks, in_node=near)


def _collective(
    kernels: KernelTimes, kind: Kind, calls: int, token_bytes: float, exchange: Exchange
) -> Collective:
    """Price ``calls`` of an exchange in which each rank sends ``token_bytes`` per token."""
    probe = operator(
        kind, kind, calls, np.ones(1), comm_bytes=np.array([_PROBE_BYTES]), exchange=exchange
    )
    priced = kernels.price(probe)
    a_byte_s = float(priced.work_s[0]) / _PROBE_BYTES
    return Collective(
        fixed_ns=round(float(priced.fixed_s[0]) * NS_PER_S),
        token_fixed_ns=round(a_byte_s * token_bytes * NS_PER_S * ONE),
        token_bytes=calls * token_bytes,
    )


def _add(*parts: Collective) -> Collective:
    return Collective(
        fixed_ns=sum(part.fixed_ns for part in parts),
        token_fixed_ns=sum(part.token_fixed_ns for part in parts),
        token_bytes=sum(part.token_bytes for part in parts),
    )
