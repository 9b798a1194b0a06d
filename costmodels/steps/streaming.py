"""Term of a step's price: weights or state that are streamed to the device while kernels run.

See `costmodels.memory.streaming` for the two ways of streaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.layouts.shard import RankShard
from costmodels.memory.streaming import Offload
from costmodels.steps.clips import to_fixed_ns, whole_ns
from costmodels.steps.describe import StepRow
from costmodels.steps.prices import StepPrices
from costmodels.work import FRACTION_BITS, ONE, Array, slowed
from sim import accounts
from sim.clock import NS_PER_S, to_ns
from sim.evidence import Source, weakest
from sim.shape import StepShape

STREAM = "host_stream"
"""The name of the term's row among a step's operators."""
_HIDES_DEN = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """The time by which a rank's transfers outlast its layers; a `combined.StepTerm`."""

    offload: Offload
    num_layers: int
    weights_ns: list[int]
    """Time of weights to the device, ``[max_num_batched_tokens + 1]`` by tokens."""
    weight_bytes: Array
    """Bytes behind `weights_ns`, by tokens."""
    disk_ns: int
    """Time per step of the disk's part, read in parallel with the rest."""
    kv_in_fixed_ns: int
    """A token of context, `FRACTION_BITS` bits behind the point; the next: a new token, back."""
    kv_out_fixed_ns: int
    kv_bytes_per_token: float
    hides_num: int
    """Share of the layers' computation that transfers run beside, in units of 1 / `_HIDES_DEN`."""
    head_ns: list[int]
    """LM head and sampling by logits: nothing is streamed for them, so they hide no transfer."""

    def beside_ns(self, shape: StepShape, kernels_ns: int) -> int:
        """Return the exposed time of a step whose kernels take ``kernels_ns``."""
        tokens, read = _moved(shape)
        in_ns = self.weights_ns[tokens] + (read * self.kv_in_fixed_ns >> FRACTION_BITS)
        out_ns = tokens * self.kv_out_fixed_ns >> FRACTION_BITS
        layers_ns = max(kernels_ns - self.head_ns[shape.logits], 0)
        hidden_ns = layers_ns * self.hides_num // _HIDES_DEN
        return max(in_ns, out_ns, self.disk_ns if tokens else 0, hidden_ns) - hidden_ns

    def beside_s(self, columns: Mapping[str, Array], kernels_s: Array) -> dict[str, Array]:
        """Return the exposed seconds of ``n`` steps by account.

        They are posted to the reads of weights, and to those of state as far as state adds to them.
        In steps with decodes these are the decode accounts, because the decodes would wait as long
        without a prompt beside them; in other steps it is prefill memory.
        """
        tokens = columns["decode_seqs"] + columns["prefill_tokens"]
        read = columns["decode_context_tokens"] + columns["prefill_context_tokens"]
        link_ns = np.array(self.weights_ns, dtype=float)[tokens.astype(np.int64)]
        weights_ns = np.maximum(link_ns, np.where(tokens > 0, float(self.disk_ns), 0.0))
        in_ns = link_ns + read * self.kv_in_fixed_ns / ONE
        longest_ns = np.maximum(weights_ns, np.maximum(in_ns, tokens * self.kv_out_fixed_ns / ONE))
        heads_s = np.array(self.head_ns)[columns["logits"].astype(np.int64)] / NS_PER_S
        hidden_s = np.maximum(kernels_s - heads_s, 0.0) * self.hides_num / _HIDES_DEN
        exposed_s = np.maximum(longest_ns / NS_PER_S - hidden_s, 0.0)
        weights_s = np.minimum(exposed_s, np.maximum(weights_ns / NS_PER_S - hidden_s, 0.0))
        decodes = columns["decode_seqs"] > 0
        return {
            accounts.DECODE_WEIGHT_READS: np.where(decodes, weights_s, 0.0),
            accounts.DECODE_STATE_READS: np.where(decodes, exposed_s - weights_s, 0.0),
            accounts.PREFILL_MEMORY: np.where(decodes, 0.0, exposed_s),
        }

    def rows(self, shape: StepShape, kernels_ns: int) -> list[StepRow]:
        """Return one row with the exposed time and all bytes of streaming, both ways."""
        tokens, read = _moved(shape)
        moved = float(self.weight_bytes[tokens]) + (read + tokens) * self.kv_bytes_per_token
        seconds = self.beside_ns(shape, kernels_ns) / NS_PER_S
        row = StepRow(STREAM, self.num_layers, comm_bytes=moved)
        return [row._replace(seconds=seconds, bound="host link")]

    def evidence(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of accounts, given those of the kernels."""
        link = self.offload.link
        label = weakest((link.label, *([link.disk_label] if self.offload.weights_disk else [])))
        touched = [accounts.DECODE_WEIGHT_READS, accounts.PREFILL_MEMORY]
        if self.offload.kv_host:
            touched.append(accounts.DECODE_STATE_READS)
        return labels | {account: weakest((labels[account], label)) for account in touched}

    def sources(self) -> list[Source]:
        """Return the numbers of the links."""
        return list(self.offload.sources)

    def slower(self, factor: float) -> Streaming:
        """Return a copy with all times multiplied by ``factor``."""
        times = ("weights_ns", "disk_ns", "kv_in_fixed_ns", "kv_out_fixed_ns", "head_ns")
        return slowed(self, factor, *times)


def streaming(shard: RankShard, prices: StepPrices, offload: Offload) -> Streaming:
    """Compile what ``offload`` keeps off the device of a rank with these prices."""
    by_tokens, layers = prices.by_tokens, shard.local.num_layers
    # The layers of all stages: a pipeline's step is its slowest stage's share of this.
    whole = shard.layer_weight_bytes * layers / shard.stage_layers
    if offload.cpu_offload_bytes:
        # Kernels read in place only what they need: of experts, those that tokens reach.
        read = sum(op.operator.calls * op.operator.weight_bytes for op in by_tokens)
        hides = min(1.0, offload.cpu_offload_bytes / shard.layer_weight_bytes)
        weight_bytes = np.minimum(read, whole) * hides
        disk_bytes = 0.0
    else:
        streamed = float(offload.weights_host + offload.weights_disk) * whole
        weight_bytes = np.where(by_tokens[0].operator.rows > 0, streamed, 0.0)
        disk_bytes, hides = float(offload.weights_disk) * whole, 1.0
    link = offload.link
    kv_bytes = float(offload.kv_host * shard.local.growing_state_bytes_per_token)
    return Streaming(
        offload=offload,
        num_layers=layers,
        weights_ns=whole_ns(weight_bytes / link.to_device_bytes_per_s),
        weight_bytes=weight_bytes,
        disk_ns=to_ns(disk_bytes / link.disk_read_bytes_per_s),
        kv_in_fixed_ns=to_fixed_ns(kv_bytes / link.to_device_bytes_per_s),
        kv_out_fixed_ns=to_fixed_ns(kv_bytes / link.from_device_bytes_per_s),
        kv_bytes_per_token=kv_bytes,
        hides_num=round(hides * _HIDES_DEN),
        head_ns=whole_ns(prices.logit_seconds()),
    )


def _moved(shape: StepShape) -> tuple[int, int]:
    """Return the new tokens of a step, and the tokens of context that it reads."""
    tokens = shape.decode_seqs + shape.prefill_tokens
    return tokens, shape.decode_context_tokens + shape.prefill_context_tokens
