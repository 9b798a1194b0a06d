"""A rank's step cost with what goes over links beside its kernels.

`RooflineStepCost` prices the kernels. Here is added what they do not hide: weights and state that
are streamed from the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels.efficiency import Efficiency
from costmodels.engine_profile import EngineProfile
from costmodels.evidence import Source, weakest
from costmodels.explain import OperatorRow
from costmodels.gpu_spec import GpuSpec
from costmodels.kernel_times import KernelTimes
from costmodels.parallel import RankShard
from costmodels.step_cost import RooflineStepCost
from costmodels.step_tables import StepTables
from costmodels.streaming import Offload, Stream, stream_label
from costmodels.work import Array
from sim import accounts
from sim.clock import NS_PER_S, to_ns
from sim.protocols import DecodeRun, StepPrice
from sim.shape import StepShape, grown
from sim.throttle import PowerThrottle

STREAM = "host_stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedStepCost:
    """A `sim.protocols.StepCost` of one rank whose weights or state are not all on its device."""

    kernel_cost: RooflineStepCost
    offload: Offload
    stream: Stream
    head_ns: list[int]
    """LM head and sampling by logits: nothing is streamed for them, so they hide nothing."""

    @property
    def kernels(self) -> KernelTimes:
        """Prices of kernels."""
        return self.kernel_cost.kernels

    @property
    def shard(self) -> RankShard:
        """What one rank holds."""
        return self.kernel_cost.shard

    @property
    def gpu(self) -> GpuSpec:
        """The device of each rank."""
        return self.kernel_cost.gpu

    @property
    def efficiency(self) -> Efficiency:
        """How much of its peaks kernels reach."""
        return self.kernel_cost.efficiency

    @property
    def profile(self) -> EngineProfile:
        """Host times."""
        return self.kernel_cost.profile

    @property
    def tables(self) -> StepTables:
        """The kernels' tables."""
        return self.kernel_cost.tables

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Sizes of CUDA graphs."""
        return self.kernel_cost.graph_sizes

    @property
    def largest_graph(self) -> int:
        """In tokens."""
        return self.kernel_cost.largest_graph

    @property
    def throttle(self) -> PowerThrottle | None:
        """The device's power limit."""
        return self.kernel_cost.throttle

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """The cost of one step; see `RooflineStepCost.price`."""
        price = self.kernel_cost.price(shape, draw)
        layers_ns = max(price.gpu_ns - self.head_ns[shape.logits], 0)
        return price._replace(gpu_ns=price.gpu_ns + self.stream.exposed_ns(shape, layers_ns))

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps whose context grows by one a sequence a step."""
        first = self.price(shape)
        if not shape.decode_seqs:
            return DecodeRun(first, [0] * steps, 0)
        kernels = self.kernel_cost.price_decodes(shape, steps).gpu_cumulative_ns
        head_ns, before_ns, step, gpu_ns = self.head_ns[shape.logits], 0, shape, []
        for until_ns in kernels:
            kernel_ns, before_ns = until_ns - before_ns, until_ns
            layers_ns = max(kernel_ns - head_ns, 0)
            gpu_ns.append(kernel_ns + self.stream.exposed_ns(step, layers_ns))
            step = grown(step, 1)
        return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))

    def schedule_ns(self, running: int, /) -> int:
        """Host time of one scheduler call."""
        return self.kernel_cost.schedule_ns(running)

    def update_ns(self, seqs: int, /) -> int:
        """Host time to apply a step's outputs."""
        return self.kernel_cost.update_ns(seqs)

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """GPU seconds of many steps by account; see `step_split.split_steps`.

        What streaming adds is reading weights and state: of decodes where there are any, because
        they would wait as long without a prompt beside them, else of prefill memory.
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
        """The same with every GPU and every host time multiplied; transfers are the GPU's."""
        return replace(
            self,
            kernel_cost=self.kernel_cost.slower(gpu=gpu, host=host),
            stream=self.stream.slower(gpu),
            head_ns=[round(ns * gpu) for ns in self.head_ns],
        )

    def evidence(self) -> dict[str, str]:
        """The evidence label of each GPU time account."""
        found, label = self.kernel_cost.evidence(), stream_label(self.offload)
        touched = [accounts.DECODE_WEIGHT_READS, accounts.PREFILL_MEMORY]
        if self.offload.kv_host:
            touched.append(accounts.DECODE_STATE_READS)
        return found | {account: weakest((found[account], label)) for account in touched}

    def sources(self) -> list[Source]:
        """Every number behind the prices, with its label and source."""
        return [*self.kernel_cost.sources(), *self.offload.sources]

    def describe(self, shape: StepShape) -> list[OperatorRow]:
        """Work and time of each operator; the last row is what streaming adds."""
        rows = self.kernel_cost.describe(shape)
        if not shape.num_tokens:
            return rows
        return [*rows, self.stream_row(shape)]

    def stream_row(self, shape: StepShape) -> OperatorRow:
        """The stream of one step: all its bytes, and the seconds that kernels do not hide."""
        kernel_ns = self.kernel_cost.price(shape).gpu_ns
        layers_ns = max(kernel_ns - self.head_ns[shape.logits], 0)
        return OperatorRow(
            name=STREAM,
            calls=self.shard.local.num_layers,
            flops=0.0,
            weight_bytes=0.0,
            state_bytes=0.0,
            activation_bytes=0.0,
            comm_bytes=self.stream.link_bytes(shape),
            seconds=self.stream.exposed_ns(shape, layers_ns) / NS_PER_S,
            bound="host link",
        )


RankStepCost = RooflineStepCost | StreamedStepCost
"""One rank, as a whole replica or as a part of one."""


def head_seconds_ns(tables: StepTables) -> list[int]:
    """LM head and sampling, by logits."""
    seconds: Array = tables.logit_seconds()
    return [to_ns(value) for value in seconds.tolist()]
