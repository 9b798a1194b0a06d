"""Term of a step's price: ranks that share a batch, pipeline stages, half batches.

The engine of `sim` plans one batch for the whole replica. It is dealt out (`layouts.dealing`):

- Data-parallel ranks take whole sequences, as evenly as their number allows; all wait for the rank
  with the most sequences. Experts see the tokens of all ranks.
- A pipeline works on one micro-batch per stage at once. A step of the replica is one round in which
  every micro-batch passes all stages, so it takes the slowest stage's time once per stage.
- Overlapped batches (enable_dbo) are two halves: one computes while the other communicates, and the
  longer of the two counts.

Contexts are taken as equal on all ranks: differences between the sequences of a batch add no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.engines.profile import padded_sizes
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.links import load_links
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.layouts.dealing import Dealt, DealtColumns, Limits, deal
from costmodels.layouts.exchanges import stage_send
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import group_operators
from costmodels.steps.clips import whole_ns
from costmodels.steps.compiled import CompiledPrices
from costmodels.steps.prices import OVERLAPPED, StepPrices, compute_bound_s, post, posted, summed
from costmodels.work import Array, slowed
from sim import accounts
from sim.arrays import Int64
from sim.evidence import Source
from sim.protocols import StepPrice
from sim.shape import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The ranks of a replica, and what they add to the price of the busiest; see `replica_of`."""

    shard: RankShard
    limits: Limits
    """The limits of one rank and micro-batch."""
    links: tuple[Source, ...]
    """The numbers of the links between ranks and stages."""
    network: tuple[Source, ...]
    """The device's network, if ranks or stages are in several fabric domains."""
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
    def layout(self) -> Layout:
        """The ranks of the replica."""
        return self.shard.layout

    def deal(self, shape: StepShape) -> Dealt:
        """Return the busiest rank and micro-batch of a step of this shape."""
        return deal(shape, self.layout, self.limits)

    def price(self, rank: StepPrice, dealt: Dealt) -> StepPrice:
        """Return the price of a step from that of its busiest rank and micro-batch."""
        gpu_ns, compute_ns = self.step_ns(rank.gpu_ns, dealt), 0
        if dealt.shape.prefill_tokens:
            # The compute-bound time that heats the device: the step has the same share of it as the
            # layers.
            layers_ns = rank.gpu_ns + self.group_ns[dealt.mean_tokens]
            bound_ns = rank.compute_ns + self.group_compute_ns[dealt.mean_tokens]
            compute_ns = gpu_ns * bound_ns // max(layers_ns, 1)
        delay_ns, launch_ns, tail_ns = rank.launch_delay_ns, rank.launch_ns, rank.tail_ns
        if self.layout.pipeline_parallel_size > 1:
            launch_ns = self._launch_ns(launch_ns, dealt)
        return StepPrice(gpu_ns, delay_ns, launch_ns, tail_ns, min(compute_ns, gpu_ns))

    def step_ns(self, rank_ns: int, dealt: Dealt) -> int:
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

    def _launch_ns(self, launch_ns: int, dealt: Dealt) -> int:
        """Return the launch time of one step on all stages, each once per micro-batch.

        A stage launches the kernels of its own layers only; the launch of a full graph hardly
        depends on the number of layers.
        """
        stages = self.layout.pipeline_parallel_size
        if dealt.shape.prefill_tokens or dealt.shape.num_tokens > self.limits.largest_graph:
            return launch_ns * stages * self.shard.stage_layers // self.shard.model.num_layers
        return stages * launch_ns

    def split(
        self, seconds: dict[str, Array], dealt: DealtColumns, prices: StepPrices
    ) -> dict[str, Array]:
        """Return the seconds of ``n`` steps by account, from those of the busiest rank, whose
        operators have ``prices``.

        Of an overlapped exchange, only the part that computation does not hide is posted.
        """
        own, mean, logits = dealt.shape, dealt.mean_tokens, dealt.logits
        decoded = prices.tokens_per_seq * own["decode_seqs"]
        has_prefill = own["prefill_tokens"] > 0
        decodes = np.where(has_prefill, decoded, mean).astype(np.int64)
        decodes = np.where(own["decode_seqs"] > 0, np.minimum(decodes, mean), 0)
        post(seconds, (posted(one, mean, decodes) for one in self.group))
        self._overlap(seconds, dealt.halves, dealt.tokens)
        # Both halves are sampled together, so the logits are those of both.
        sampled = decoded.astype(np.int64) * np.where(dealt.halves, 2, 1)
        decode_logits = np.where(has_prefill, np.minimum(sampled, logits), logits)
        heads = summed((posted(one, logits, decode_logits) for one in prices.by_logits), len(mean))
        stages = self.layout.pipeline_parallel_size
        for account, values in heads.items():
            of_layers = seconds[account] * float(stages * self.shard.stage_share)
            seconds[account] = of_layers + values * dealt.sampling
        if stages > 1:
            sent_s = self.layout.stage_hops * self.send.total_s[dealt.tokens]
            seconds[accounts.COMMUNICATION] += sent_s
            drained = 1 + dealt.drain / stages
            seconds = {account: values * drained for account, values in seconds.items()}
        return seconds

    def _overlap(self, seconds: dict[str, Array], halves: NDArray[np.bool_], tokens: Int64) -> None:
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

    def slower(self, factor: float) -> Replica:
        """Return a copy with all times multiplied by ``factor``."""
        times = ("group_ns", "group_compute_ns", "exchange_ns", "send_ns", "head_ns")
        return slowed(self, factor, *times)


def replica_of(
    kernels: KernelTimes,
    prices: StepPrices,
    compiled: CompiledPrices,
    graph_sizes: tuple[int, ...],
) -> Replica | None:
    """Return the ranks that share a replica's batch; None for one rank alone."""
    layout = kernels.shard.layout
    if layout.data_parallel_size == layout.pipeline_parallel_size == 1:
        return None
    sizes = padded_sizes(np.arange(len(compiled.token_fixed_ns)), graph_sizes)
    operators = group_operators(kernels.shard, layout.data_parallel_size * sizes)
    group = tuple(kernels.price(one) for one in operators)
    overlapped = [one for one in prices.by_tokens if one.operator.name in OVERLAPPED]
    send, none = _send(kernels, sizes), np.zeros(len(sizes))
    crosses = layout.in_node(layout.gpus) < layout.gpus
    return Replica(
        shard=kernels.shard,
        limits=compiled.limits,
        links=tuple(_links(kernels.gpu, layout, crosses)),
        network=(kernels.gpu.source_of("network_bytes_per_s"),) if crosses else (),
        group=group,
        send=send,
        group_ns=whole_ns(sum((one.total_s for one in group), none)),
        group_compute_ns=whole_ns(sum((compute_bound_s(one) for one in group), none)),
        exchange_ns=whole_ns(sum((one.total_s for one in overlapped), none)),
        send_ns=whole_ns(send.total_s),
        head_ns=whole_ns(prices.logit_seconds()),
    )


def _send(kernels: KernelTimes, sizes: Array) -> OperatorSeconds:
    """Price the transfer of hidden states to the next stage, over the link that joins the
    stages."""
    layout, send = kernels.shard.layout, stage_send(kernels.shard, sizes)
    if layout.pipeline_parallel_size > 1 and layout.stage_link is None:
        return kernels.price(send)
    none = np.zeros_like(sizes)
    link = layout.stage_link
    if link is None:
        return OperatorSeconds(operator=send, work_s=none, fixed_s=none, compute_bound=none > 0)
    # All tensor-parallel ranks of a stage share the link.
    num_bytes = send.comm_bytes * layout.tensor_parallel_size
    return OperatorSeconds(
        operator=send,
        work_s=num_bytes / link.bytes_per_s,
        fixed_s=np.where(sizes > 0, link.latency_s, 0.0),
        compute_bound=none > 0,
    )


def _links(gpu: GpuSpec, layout: Layout, crosses: bool) -> list[Source]:
    used, found = [], list[Source]()
    if layout.data_parallel_size > 1:
        mode = layout.all2all_backend.removeprefix("deepep_")
        names = {"low_latency": "low_latency", "high_throughput": "throughput"}
        used.append(names.get(mode, "gather"))
    if layout.stage_link:
        found = layout.stage_link.sources()
    elif layout.pipeline_parallel_size > 1:
        used.append("send")
    return [*found, *load_links(gpu.name).sources(tuple(used), is_network=crosses)]
