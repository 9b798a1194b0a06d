"""Step cost of a rank whose weights or state are streamed to its device while its kernels run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodels.memory.streaming import Offload, Stream, make_stream, stream_label
from costmodels.operators.step_tables import StepTables
from costmodels.steps.explain import OperatorRow
from costmodels.steps.step_cost import RooflineStepCost
from costmodels.steps.wrapped_cost import WrappedStepCost
from costmodels.work import Array
from sim import accounts
from sim.clock import NS_PER_S, to_ns
from sim.evidence import Source, weakest
from sim.shape import StepShape

STREAM = "host_stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedStepCost(WrappedStepCost):
    """A `sim.protocols.StepCost` of a rank that streams; built by `streamed`."""

    offload: Offload
    stream: Stream
    head_ns: list[int]
    """LM head and sampling by logits: nothing is streamed for them, so they hide no transfer."""

    def beside_ns(self, shape: StepShape, own: StepShape, kernels_ns: int) -> int:
        """Return the time by which transfers outlast the layers that run beside them."""
        return self.stream.exposed_ns(shape, max(kernels_ns - self.head_ns[shape.logits], 0))

    def split(self, columns: Mapping[str, Array], /) -> dict[str, Array]:
        """Split the GPU seconds of many steps by account; see `step_split.split_steps`.

        The exposed time of streaming is posted to the reads of weights and state. In steps with
        decodes these are the decode accounts, because the decodes would wait as long without a
        prompt beside them; in other steps it is prefill memory.
        """
        seconds = self.kernel_cost.split(columns)
        heads_s = np.array(self.head_ns)[columns["logits"].astype(np.int64)] / NS_PER_S
        layers_s = np.maximum(sum(seconds.values(), np.zeros(len(heads_s))) - heads_s, 0.0)
        weights_s, state_s = self.stream.exposed_s(columns, layers_s)
        decodes = columns["decode_seqs"] > 0
        seconds[accounts.DECODE_WEIGHT_READS] += np.where(decodes, weights_s, 0.0)
        seconds[accounts.DECODE_STATE_READS] += np.where(decodes, state_s, 0.0)
        seconds[accounts.PREFILL_MEMORY] += np.where(decodes, 0.0, weights_s + state_s)
        return seconds

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> StreamedStepCost:
        """Return a copy with all GPU times multiplied by ``gpu``, transfers included, and host
        times by ``host``."""
        return replace(
            self,
            kernel_cost=self.kernel_cost.slower(gpu=gpu, host=host),
            stream=self.stream.slower(gpu),
            head_ns=[round(ns * gpu) for ns in self.head_ns],
        )

    def evidence(self) -> dict[str, str]:
        """Return the evidence label of each GPU time account."""
        found, label = self.kernel_cost.evidence(), stream_label(self.offload)
        touched = [accounts.DECODE_WEIGHT_READS, accounts.PREFILL_MEMORY]
        if self.offload.kv_host:
            touched.append(accounts.DECODE_STATE_READS)
        return found | {account: weakest((found[account], label)) for account in touched}

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        return [*self.kernel_cost.sources(), *self.offload.sources]

    def describe(self, shape: StepShape) -> list[OperatorRow]:
        """Return the work and time of each operator; the last row has the exposed time and all
        bytes of streaming."""
        rows = self.kernel_cost.describe(shape)
        if not shape.num_tokens:
            return rows
        kernels_ns = self.kernel_cost.price(shape).gpu_ns
        added = OperatorRow(
            name=STREAM,
            calls=self.shard.local.num_layers,
            flops=0.0,
            weight_bytes=0.0,
            state_bytes=0.0,
            activation_bytes=0.0,
            comm_bytes=self.stream.link_bytes(shape),
            seconds=self.beside_ns(shape, shape, kernels_ns) / NS_PER_S,
            bound="host link",
        )
        return [*rows, added]


def streamed(kernel_cost: RooflineStepCost, offload: Offload) -> StreamedStepCost:
    """Wrap a rank's step cost to stream what ``offload`` keeps off the device."""
    return StreamedStepCost(
        kernel_cost=kernel_cost,
        offload=offload,
        stream=make_stream(kernel_cost.shard, offload, kernel_cost.tables),
        head_ns=head_seconds_ns(kernel_cost.tables),
    )


def head_seconds_ns(tables: StepTables) -> list[int]:
    """Return the nanoseconds of LM head and sampling, by logits."""
    return [to_ns(value) for value in tables.logit_seconds().tolist()]
