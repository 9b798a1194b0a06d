"""Term of a step's price: weights or state that are streamed to the device while kernels run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodels.layouts.shard import RankShard
from costmodels.memory.streaming import Offload, Stream, make_stream, stream_label
from costmodels.steps.compiled import scaled, whole_ns
from costmodels.steps.describe import StepRow
from costmodels.steps.prices import StepPrices
from costmodels.work import Array
from sim import accounts
from sim.clock import NS_PER_S
from sim.evidence import Source, weakest
from sim.shape import StepShape

STREAM = "host_stream"
"""The name of the term's row among a step's operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """The time by which a rank's transfers outlast its layers; a `cost.StepTerm`."""

    num_layers: int
    offload: Offload
    stream: Stream
    head_ns: list[int]
    """LM head and sampling by logits: nothing is streamed for them, so they hide no transfer."""

    def beside_ns(self, shape: StepShape, kernels_ns: int) -> int:
        """Return the exposed time of a step whose kernels take ``kernels_ns``."""
        return self.stream.exposed_ns(shape, max(kernels_ns - self.head_ns[shape.logits], 0))

    def beside_s(self, columns: Mapping[str, Array], kernels_s: Array) -> dict[str, Array]:
        """Return the exposed seconds of ``n`` steps by account.

        They are posted to the reads of weights and state. In steps with decodes these are the
        decode accounts, because the decodes would wait as long without a prompt beside them; in
        other steps it is prefill memory.
        """
        heads_s = np.array(self.head_ns)[columns["logits"].astype(np.int64)] / NS_PER_S
        layers_s = np.maximum(kernels_s - heads_s, 0.0)
        weights_s, state_s = self.stream.exposed_s(columns, layers_s)
        decodes = columns["decode_seqs"] > 0
        return {
            accounts.DECODE_WEIGHT_READS: np.where(decodes, weights_s, 0.0),
            accounts.DECODE_STATE_READS: np.where(decodes, state_s, 0.0),
            accounts.PREFILL_MEMORY: np.where(decodes, 0.0, weights_s + state_s),
        }

    def rows(self, shape: StepShape, kernels_ns: int) -> list[StepRow]:
        """Return one row with the exposed time and all bytes of streaming."""
        row = StepRow(STREAM, self.num_layers, comm_bytes=self.stream.link_bytes(shape))
        seconds = self.beside_ns(shape, kernels_ns) / NS_PER_S
        return [row._replace(seconds=seconds, bound="host link")]

    def evidence(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of accounts, given those of the kernels."""
        label = stream_label(self.offload)
        touched = [accounts.DECODE_WEIGHT_READS, accounts.PREFILL_MEMORY]
        if self.offload.kv_host:
            touched.append(accounts.DECODE_STATE_READS)
        return labels | {account: weakest((labels[account], label)) for account in touched}

    def sources(self) -> list[Source]:
        """Return the numbers of the links."""
        return list(self.offload.sources)

    def slower(self, factor: float) -> Streaming:
        """Return a copy with all times multiplied by ``factor``."""
        return replace(
            self, stream=self.stream.slower(factor), head_ns=scaled(self.head_ns, factor)
        )


def streaming(shard: RankShard, prices: StepPrices, offload: Offload) -> Streaming:
    """Compile what ``offload`` keeps off the device of a rank with these prices."""
    return Streaming(
        num_layers=shard.local.num_layers,
        offload=offload,
        stream=make_stream(shard, offload, prices.by_tokens),
        head_ns=whole_ns(prices.logit_seconds()),
    )
