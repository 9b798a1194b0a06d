"""Step cost of ranks that share contexts: they split prompts by tokens, keys and values by
position.

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

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodels.hardware.links import load_links
from costmodels.steps.context_exchanges import ContextExchanges, context_exchanges
from costmodels.steps.explain import OperatorRow
from costmodels.steps.step_cost import RooflineStepCost
from costmodels.steps.wrapped_cost import WrappedStepCost
from costmodels.work import FRACTION_BITS, ONE, Array
from sim import accounts
from sim.clock import NS_PER_S
from sim.evidence import Source, weakest
from sim.shape import StepShape

MERGE, SHARE = "context_merge", "context_kv_exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStepCost(WrappedStepCost):
    """A `sim.protocols.StepCost` of one rank that shares contexts; built by `context_shared`."""

    exchanges: ContextExchanges

    def own(self, shape: StepShape) -> StepShape:
        """Return one rank's part of the step: its share of the prompt tokens and all of the
        decodes.

        Its tokens attend to those of the other ranks, which therefore count as context.
        """
        ranks = self.shard.layout.prefill_context_parallel_size
        if ranks == 1 or not shape.prefill_tokens:
            return shape
        tokens = -(-shape.prefill_tokens // ranks)
        return shape._replace(
            prefill_tokens=tokens,
            prefill_context_tokens=shape.prefill_context_tokens + shape.prefill_tokens - tokens,
            prefill_pairs=-(-shape.prefill_pairs // ranks),
        )

    def beside_ns(self, shape: StepShape, own: StepShape, kernels_ns: int) -> int:
        """Return the time of the exchanges, less what a ring hides behind attention."""
        return self._merge_ns(shape) + self._share_ns(shape, own)

    def _merge_ns(self, shape: StepShape) -> int:
        cached, exchanges = shape.prefill_context_tokens, self.exchanges
        return exchanges.merge.ns(self._merged_tokens(shape)) + exchanges.prefix.ns(cached)

    def _merged_tokens(self, shape: StepShape) -> int:
        if self.exchanges.merges_prompts and shape.prefill_context_tokens:
            return shape.decode_seqs + shape.prefill_tokens
        return shape.decode_seqs

    def _share_ns(self, shape: StepShape, own: StepShape) -> int:
        if not shape.prefill_tokens:
            return 0
        passes = self.exchanges.passes
        exchange_ns = self.exchanges.share.ns(shape.prefill_context_tokens + shape.prefill_tokens)
        if not passes:
            return exchange_ns
        cost = self.kernel_cost
        attention_ns = own.prefill_pairs * cost.prefill_pair_fixed_ns
        kv_tokens = own.prefill_context_tokens + own.prefill_tokens
        attention_ns += kv_tokens * cost.prefill_tile_fixed_ns
        # A ring of n ranks makes n - 1 passes. While each runs, the rank computes attention over
        # one of its n parts; only the last part's computation has no pass to hide.
        hidden_ns = (attention_ns >> FRACTION_BITS) * passes // (passes + 1)
        return max(exchange_ns - hidden_ns, 0)

    def split(self, columns: Mapping[str, Array], /) -> dict[str, Array]:
        """Split the GPU seconds of many steps by account; exposed exchanges are communication."""
        own, cost, exchanges = self._own_columns(columns), self.kernel_cost, self.exchanges
        passes, seconds = exchanges.passes, cost.split(own)
        cached, tokens = columns["prefill_context_tokens"], columns["prefill_tokens"]
        merged = columns["decode_seqs"]
        if exchanges.merges_prompts:
            merged = merged + np.where(cached > 0, tokens, 0.0)
        beside_s = exchanges.merge.seconds(merged) + exchanges.prefix.seconds(cached)
        shared_s = exchanges.share.seconds(np.where(tokens > 0, cached + tokens, 0.0))
        if passes:
            attention_ns = own["prefill_pairs"] * cost.prefill_pair_fixed_ns
            kv_tokens = own["prefill_context_tokens"] + own["prefill_tokens"]
            attention_ns = attention_ns + kv_tokens * cost.prefill_tile_fixed_ns
            hidden_s = attention_ns / ONE / NS_PER_S * passes / (passes + 1)
            shared_s = np.maximum(shared_s - hidden_s, 0.0)
        seconds[accounts.COMMUNICATION] += beside_s + shared_s
        return seconds

    def _own_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        ranks = self.shard.layout.prefill_context_parallel_size
        own = dict(columns)
        tokens = np.ceil(own["prefill_tokens"] / ranks)
        others = own["prefill_tokens"] - tokens
        own["prefill_context_tokens"] = own["prefill_context_tokens"] + others
        own["prefill_pairs"] = np.ceil(own["prefill_pairs"] / ranks)
        own["prefill_tokens"] = tokens
        return own

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> ContextStepCost:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``."""
        return replace(
            self,
            kernel_cost=self.kernel_cost.slower(gpu=gpu, host=host),
            exchanges=self.exchanges.slower(gpu),
        )

    def evidence(self) -> dict[str, str]:
        """Return the label of each GPU time account: ``extrapolated`` at best, as nothing was
        measured in such a layout."""
        found = {
            account: weakest((label, "extrapolated"))
            for account, label in self.kernel_cost.evidence().items()
        }
        links = [source["label"] for source in self._link_sources()]
        found[accounts.COMMUNICATION] = weakest((found[accounts.COMMUNICATION], *links))
        return found

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        return [*self.kernel_cost.sources(), *self._link_sources()]

    def _link_sources(self) -> list[Source]:
        layout = self.shard.layout
        away = layout.in_node(layout.stage_gpus) < layout.stage_gpus
        used = ("gather", "send") if self.exchanges.passes else ("gather",)
        return load_links(self.gpu.name).sources(used, is_network=away)

    def describe(self, shape: StepShape) -> list[OperatorRow]:
        """Return the work and time of each operator on one rank; the last rows are the
        exchanges."""
        layout = self.shard.layout
        rows = []
        for row in self.kernel_cost.describe(self.own(shape)):
            if row.name == "decode_attention":
                flops = row.flops / layout.prefill_context_parallel_size
                row = row._replace(flops=flops, state_bytes=row.state_bytes / layout.context_ranks)
            rows.append(row)
        if not shape.num_tokens:
            return rows
        cached, exchanges = shape.prefill_context_tokens, self.exchanges
        merged = self._merged_tokens(shape) * exchanges.merge.token_bytes
        merged += cached * exchanges.prefix.token_bytes
        shared = (cached + shape.prefill_tokens) * exchanges.share.token_bytes
        for name, ns, num_bytes in (
            (MERGE, self._merge_ns(shape), merged),
            (
                SHARE,
                self._share_ns(shape, self.own(shape)),
                shared if shape.prefill_tokens else 0.0,
            ),
        ):
            if num_bytes:
                rows.append(_row(name, self.shard.local.num_layers, ns, num_bytes))
        return rows


def context_shared(kernel_cost: RooflineStepCost) -> ContextStepCost:
    """Wrap a rank's step cost to price the context parallelism of its layout."""
    return ContextStepCost(
        kernel_cost=kernel_cost, exchanges=context_exchanges(kernel_cost.kernels)
    )


def _row(name: str, calls: int, ns: int, num_bytes: float) -> OperatorRow:
    return OperatorRow(
        name=name,
        calls=calls,
        flops=0.0,
        weight_bytes=0.0,
        state_bytes=0.0,
        activation_bytes=0.0,
        comm_bytes=num_bytes,
        seconds=ns / NS_PER_S,
        bound="link",
    )
