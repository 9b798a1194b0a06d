"""Exchanges between ranks that share contexts, for all layers of a step: bytes, latencies,
rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.mla import Mla
from costmodels.operators.kernel_times import KernelTimes
from costmodels.work import FRACTION_BITS, ONE, Array, Exchange, Kind, operator
from sim.clock import NS_PER_S

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
    """The exchanges of a step, each priced by the tokens that cause it."""

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

    def slower(self, factor: float) -> ContextExchanges:
        """Return a copy with all times multiplied by ``factor``."""
        return replace(
            self,
            merge=self.merge.slower(factor),
            prefix=self.prefix.slower(factor),
            share=self.share.slower(factor),
        )


class _Heads(NamedTuple):
    """One layer's attention on one rank, in bytes per token."""

    queries: int
    outputs: int
    sums: int
    kv: float
    is_latent: bool


def context_exchanges(kernels: KernelTimes) -> ContextExchanges:
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
    return ContextExchanges(
        merge=merge,
        merges_prompts=merges_prompts,
        prefix=prefix,
        share=share,
        passes=layout.prefill_context_parallel_size - 1 if ring else 0,
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
