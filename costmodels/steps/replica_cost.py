"""Step cost of a replica whose ranks share a batch: data-parallel ranks, pipeline stages, half
batches.

The engine of `sim` plans one batch for the whole replica. This module deals it out:

- Data-parallel ranks take whole sequences, as evenly as their number allows; all wait for the rank
  with the most sequences. Experts see the tokens of all ranks.
- A pipeline works on one micro-batch per stage at once. A step of the replica is one round in which
  every micro-batch passes all stages, so it takes the slowest stage's time once per stage.
- Overlapped batches (enable_dbo) are two halves: one computes while the other communicates, and the
  longer of the two counts.

Contexts are taken as equal on all ranks: differences between the sequences of a batch add no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.links import load_links
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.layouts.dealing import Dealt, Limits, deal, deal_columns
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.steps.context_cost import ContextStepCost
from costmodels.steps.explain import OperatorRow
from costmodels.steps.step_cost import RooflineStepCost, risen_steps
from costmodels.steps.step_split import post_operator
from costmodels.steps.streamed_cost import StreamedStepCost
from costmodels.work import Array
from sim import accounts
from sim.evidence import Source, weakest
from sim.protocols import DecodeRun, Rises, StepPrice
from sim.shape import StepShape, grown
from sim.throttle import PowerThrottle

RankStepCost = RooflineStepCost | StreamedStepCost | ContextStepCost
"""The step cost of one rank, which is a whole replica or a part of one."""
OVERLAPPED = ("dispatch", "combine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStepCost:
    """A `sim.protocols.StepCost` of a whole replica; built by `layout_cost`."""

    rank: RankStepCost
    """All layers on one rank, by its own tokens, without the experts that ranks share."""
    group: tuple[OperatorSeconds, ...]
    """Operators of shared experts, by mean tokens per rank: ``[max_num_batched_tokens + 1]``."""
    send: OperatorSeconds
    """Transfer to the next stage, by tokens per rank and micro-batch."""
    group_ns: list[int]
    group_compute_ns: list[int]
    exchange_ns: list[int]
    """Exchanges that overlap with the other half's computation, by tokens per rank and half."""
    send_ns: list[int]
    head_ns: list[int]
    """LM head and sampling, by logits."""

    @property
    def shard(self) -> RankShard:
        """The part of the model on one rank."""
        return self.rank.shard

    @property
    def layout(self) -> Layout:
        """The ranks of the replica."""
        return self.rank.shard.layout

    @property
    def limits(self) -> Limits:
        """The limits of one rank and micro-batch."""
        return Limits(len(self.send_ns) - 1, len(self.head_ns) - 1, self.rank.largest_graph)

    @property
    def gpu(self) -> GpuSpec:
        """The device of each rank."""
        return self.rank.gpu

    @property
    def efficiency(self) -> Efficiency:
        """The shares of the device's peaks that kernels reach."""
        return self.rank.efficiency

    @property
    def profile(self) -> EngineProfile:
        """The engine's host times."""
        return self.rank.profile

    @property
    def throttle(self) -> PowerThrottle | None:
        """The device's power limit; None: no limit."""
        return self.rank.throttle

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of the replica; see `RooflineStepCost.price`."""
        if not shape.num_tokens:
            return StepPrice(0)
        dealt, stages = self.deal(shape), self.layout.pipeline_parallel_size
        price = self.rank.price(dealt.shape, draw)
        gpu_ns, compute_ns = self._step_ns(price.gpu_ns, dealt), 0
        if shape.prefill_tokens:
            # The compute-bound time that heats the device: the step has the same share of it as the
            # layers.
            layers_ns = price.gpu_ns + self.group_ns[dealt.mean_tokens]
            bound_ns = price.compute_ns + self.group_compute_ns[dealt.mean_tokens]
            compute_ns = gpu_ns * bound_ns // max(layers_ns, 1)
        delay_ns, launch_ns, tail_ns = price.launch_delay_ns, price.launch_ns, price.tail_ns
        if stages > 1:  # each stage launches its part of the layers, once per micro-batch
            launch_ns = self._whole_launch_ns(launch_ns, dealt)
        return StepPrice(gpu_ns, delay_ns, launch_ns, tail_ns, min(compute_ns, gpu_ns))

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price ``steps`` decode-only steps in which each sequence's context grows by one token
        per step."""
        first = self.price(shape)
        if not shape.decode_seqs:
            return DecodeRun(first, [0] * steps, 0)
        if shape.clipped:  # a rank's part of clipped sums does not grow by whole tokens
            gpu_ns = [self.price(grown(shape, step)).gpu_ns for step in range(steps)]
            return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))
        dealt = self.deal(shape)
        run = self.rank.price_decodes(dealt.shape, steps)
        each = (after - before for before, after in pairwise((0, *run.gpu_cumulative_ns)))
        gpu_ns = [self._step_ns(layers_ns, dealt) for layers_ns in each]
        return DecodeRun(first, list(accumulate(gpu_ns)), min(gpu_ns))

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price decode-only steps whose contexts grow unevenly; see `sim.protocols.RoundCost`."""
        gpu_ns = [self.price(step).gpu_ns for step in risen_steps(shape, rises)]
        return DecodeRun(self.price(shape), list(accumulate(gpu_ns)), min(gpu_ns))

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one step's scheduler calls on a rank: one call per
        micro-batch."""
        layout = self.layout
        a_rank = -(-running // layout.data_parallel_size)
        return layout.pipeline_parallel_size * self.rank.schedule_ns(a_rank)

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to apply a step's outputs."""
        stages = self.layout.pipeline_parallel_size
        return stages * self.rank.update_ns(-(-seqs // (self.layout.data_parallel_size * stages)))

    def deal(self, shape: StepShape) -> Dealt:
        """Return the busiest rank and micro-batch of a step of this shape."""
        return deal(shape, self.layout, self.limits)

    def _step_ns(self, rank_ns: int, dealt: Dealt) -> int:
        """Return the time of the whole step, from the layers of the busiest rank and
        micro-batch."""
        layers_ns = rank_ns + self.group_ns[dealt.mean_tokens]
        head_ns = self.head_ns[dealt.logits]
        stages = self.layout.pipeline_parallel_size
        tokens = dealt.shape.num_tokens
        if dealt.halves:
            exchange_ns = self.exchange_ns[tokens]
            longer_ns = max(layers_ns - exchange_ns, exchange_ns)
            # The first exchange has no computation to hide behind.
            first_ns = exchange_ns // max(self.shard.model.num_moe_layers, 1)
            return 2 * longer_ns + first_ns + head_ns
        if stages == 1:
            return layers_ns + head_ns
        num, den = stages * self.shard.stage_layers, self.shard.model.num_layers
        sends_ns = self.layout.stage_hops * self.send_ns[tokens]
        round_ns = layers_ns * num // den + dealt.sampling * head_ns + sends_ns
        return round_ns * (stages + dealt.drain) // stages

    def _whole_launch_ns(self, launch_ns: int, dealt: Dealt) -> int:
        """Return the launch time of one step on all micro-batches.

        A stage launches the kernels of its own layers only; the launch of a full graph hardly
        depends on the number of layers.
        """
        stages = self.layout.pipeline_parallel_size
        if dealt.shape.prefill_tokens or dealt.shape.num_tokens > self.rank.largest_graph:
            return launch_ns * stages * self.shard.stage_layers // self.shard.model.num_layers
        return stages * launch_ns

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """Split the GPU seconds of many steps by account; see `step_split.split_steps`.

        Of an overlapped exchange, only the part that computation does not hide is posted.
        """
        dealt = deal_columns(columns, self.layout, self.limits)
        own, mean, tokens = dealt.shape, dealt.mean_tokens, dealt.tokens
        seconds = self.rank.split(own)
        decoded = self.rank.tokens_per_seq * own["decode_seqs"]
        decodes = np.where(own["prefill_tokens"] > 0, decoded, mean).astype(np.int64)
        decodes = np.where(own["decode_seqs"] > 0, np.minimum(decodes, mean), 0)
        for operator in self.group:
            post_operator(seconds, operator, mean, decodes)
        self._overlap(seconds, dealt.halves, tokens)
        logits = dealt.logits
        # Both halves are sampled together, so the logits are those of both.
        sampled = decoded.astype(np.int64) * np.where(dealt.halves, 2, 1)
        decode_logits = np.where(own["prefill_tokens"] > 0, np.minimum(sampled, logits), logits)
        stages, shard = self.layout.pipeline_parallel_size, self.shard
        for account in seconds:
            seconds[account] = seconds[account] * float(stages * shard.stage_share)
        heads = {account: np.zeros(len(logits)) for account in seconds}
        for operator in self.rank.tables.by_logits:
            post_operator(heads, operator, logits, decode_logits)
        for account, values in heads.items():
            seconds[account] = seconds[account] + values * dealt.sampling
        if stages > 1:
            seconds[accounts.COMMUNICATION] += self.layout.stage_hops * self.send.total_s[tokens]
            drained = 1 + dealt.drain / stages
            seconds = {account: values * drained for account, values in seconds.items()}
        return seconds

    def _overlap(
        self, seconds: dict[str, Array], halves: NDArray[np.bool_], tokens: NDArray[np.int64]
    ) -> None:
        """Replace one half by two whose exchanges hide behind each other's computation."""
        if not halves.any():
            return
        exchange_s = np.array(self.exchange_ns)[tokens] * 1e-9
        seconds[accounts.COMMUNICATION] -= np.where(halves, exchange_s, 0.0)
        for values in seconds.values():
            values *= np.where(halves, 2.0, 1.0)
        hidden_behind = sum(seconds.values(), np.zeros(len(tokens)))
        exposed = np.maximum(2 * exchange_s - hidden_behind, 0.0)
        exposed += exchange_s / max(self.shard.model.num_moe_layers, 1)
        seconds[accounts.COMMUNICATION] += np.where(halves, exposed, 0.0)

    def slower(self, *, gpu: float = 1.0, host: float = 1.0) -> ReplicaStepCost:
        """Return a copy with all GPU times multiplied by ``gpu`` and all host times by ``host``."""

        def longer(times: list[int]) -> list[int]:
            return [round(time * gpu) for time in times]

        return replace(
            self,
            rank=self.rank.slower(gpu=gpu, host=host),
            group_ns=longer(self.group_ns),
            group_compute_ns=longer(self.group_compute_ns),
            exchange_ns=longer(self.exchange_ns),
            send_ns=longer(self.send_ns),
            head_ns=longer(self.head_ns),
        )

    def evidence(self) -> dict[str, str]:
        """Return the label of each GPU time account: ``extrapolated`` at best, as nothing was
        measured in such a layout."""
        found = {
            account: weakest((label, "extrapolated"))
            for account, label in self.rank.evidence().items()
        }
        links = [source["label"] for source in self._link_sources()]
        found[accounts.COMMUNICATION] = weakest((found[accounts.COMMUNICATION], *links))
        return found

    def sources(self) -> list[Source]:
        """Return every number behind the prices, with its label and source."""
        numbers = [self.gpu.source_of("network_bytes_per_s")] if self._crosses_network() else []
        return [*self.rank.sources(), *numbers, *self._link_sources()]

    def describe(self, shape: StepShape) -> list[OperatorRow]:
        """Return the work and time of each operator on the busiest rank for one micro-batch."""
        dealt = self.deal(shape)
        rows = self.rank.describe(dealt.shape._replace(logits=dealt.logits))
        return [*rows, *self.describe_group(dealt.mean_tokens)]

    def describe_group(self, mean_tokens: int) -> list[OperatorRow]:
        """Return the work and time of the shared experts' operators at ``mean_tokens`` per rank."""
        return [_row(one, mean_tokens) for one in self.group]

    def _link_sources(self) -> list[Source]:
        layout = self.layout
        used, found = [], list[Source]()
        if layout.data_parallel_size > 1:
            mode = layout.all2all_backend.removeprefix("deepep_")
            names = {"low_latency": "low_latency", "high_throughput": "throughput"}
            used.append(names.get(mode, "gather"))
        if layout.stage_link:
            found = layout.stage_link.sources()
        elif layout.pipeline_parallel_size > 1:
            used.append("send")
        links = load_links(self.gpu.name)
        return [*found, *links.sources(tuple(used), is_network=self._crosses_network())]

    def _crosses_network(self) -> bool:
        layout = self.layout
        return layout.in_node(layout.gpus) < layout.gpus


def _row(priced: OperatorSeconds, tokens: int) -> OperatorRow:
    op = priced.operator
    fixed_s, work_s = float(priced.fixed_s[tokens]), float(priced.work_s[tokens])
    by_link = "link" if op.exchange else "memory"
    bound = "compute" if priced.compute_bound[tokens] else by_link
    return OperatorRow(
        name=op.name,
        calls=op.calls,
        flops=op.calls * float(op.flops[tokens]),
        weight_bytes=op.calls * float(op.weight_bytes[tokens]),
        state_bytes=op.calls * float(op.state_bytes[tokens]),
        activation_bytes=op.calls * float(op.activation_bytes[tokens]),
        comm_bytes=op.calls * float(op.comm_bytes[tokens]),
        seconds=fixed_s + work_s,
        bound="fixed" if fixed_s > work_s else bound,
    )
