"""A rank's weights and state that are not on its device: their bytes, and the time to stream them.

There are two ways, as in engines:

- Shares of every layer (FlexGen, arXiv 2303.06865; ZeRO-Inference, 2207.00032, streams all of it):
  the next layer's bytes arrive while this one computes, so a layer takes the longer of the two.
  Two layers' streamed parts are on the device at a time.
- Whole layers up to a number of bytes (vLLM's ``cpu_offload_gb``): kernels read them over the link
  in place. Nothing is fetched ahead, so the computation of resident layers hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from costmodels.hardware.gpus import GIB
from costmodels.hardware.links import HostLink
from costmodels.hardware.roofline import OperatorSeconds
from costmodels.layouts.shard import RankShard
from costmodels.work import FRACTION_BITS, ONE, Array
from sim.clock import NS_PER_S, to_ns
from sim.errors import ScenarioError
from sim.evidence import Source, weakest
from sim.shape import StepShape

_BUFFERED_LAYERS = 2
_HIDES_DEN = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Where the layers' weights and the state of sequences are. Embeddings stay on the device."""

    link: HostLink
    weights_host: Fraction = Fraction(0)
    """Share of every layer's weights in host memory; ``weights_disk``: on disk, read in every
    step."""
    weights_disk: Fraction = Fraction(0)
    kv_host: Fraction = Fraction(0)
    """Share of every sequence's keys and values in host memory."""
    cpu_offload_bytes: int = 0
    """Bytes of whole layers in host memory per device, used instead of shares."""
    host_bytes: int | None = None
    """Host memory per device; None: not known."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The numbers that its transfers depend on."""
        to_device, from_device, disk = self.link.sources
        back = (from_device,) if self.kv_host else ()
        return (to_device, *back, *((disk,) if self.weights_disk else ()))

    @property
    def is_nothing(self) -> bool:
        """Whether everything is on the device."""
        shares = self.weights_host + self.weights_disk + self.kv_host
        return not (shares or self.cpu_offload_bytes)


class RankOffload(NamedTuple):
    """The bytes that one rank keeps off its device."""

    host_weight_bytes: int
    disk_weight_bytes: int
    buffer_bytes: int
    """Bytes on the device for parts of layers in transfer."""
    kv_device_share: Fraction
    """Share of the state's bytes on the device, the buffer included."""

    @property
    def freed_bytes(self) -> int:
        """Bytes of weights that leave the device, less the buffer."""
        return self.host_weight_bytes + self.disk_weight_bytes - self.buffer_bytes


ON_DEVICE = RankOffload(0, 0, 0, Fraction(1))


def rank_offload(rank: RankShard, offload: Offload | None) -> RankOffload:
    """Return what a rank keeps off its device.

    Raises `ScenarioError` if the host has no room for it, or it cannot be priced.
    """
    if offload is None or offload.is_nothing:
        return ON_DEVICE
    _check(rank, offload)
    whole = rank.layer_weight_bytes
    share = offload.weights_host + offload.weights_disk
    host = int(whole * offload.weights_host) or min(offload.cpu_offload_bytes, whole)
    disk = int(whole * offload.weights_disk)
    buffered = Fraction(min(_BUFFERED_LAYERS, rank.stage_layers), rank.stage_layers)
    if offload.host_bytes is not None and host > offload.host_bytes:
        raise ScenarioError(
            f"{host / GIB:.1f} GiB of weights a GPU are to be in host memory, which has "
            f"{offload.host_bytes / GIB:g} (hardware.host_memory_gb)"
        )
    return RankOffload(
        host_weight_bytes=host,
        disk_weight_bytes=disk,
        buffer_bytes=-int(-whole * share * buffered // 1),
        kv_device_share=1 - offload.kv_host + offload.kv_host * buffered,
    )


def _check(rank: RankShard, offload: Offload) -> None:
    """Raise `ScenarioError` for what is not priced."""
    model = rank.model
    if rank.layout.data_parallel_size > 1:
        raise ScenarioError("offloading is not priced with data_parallel_size above 1")
    if rank.layout.context_ranks > 1:
        raise ScenarioError("offloading is not priced with context parallelism")
    if not offload.kv_host:
        return
    kinds = {mixer.kind for mixer, _ in model.mixers} - {"gqa", "mla"}
    if kinds or any(state.windows for state, _ in model.states):
        others = ", ".join(sorted(kinds)) or "a window of newest tokens in another format"
        raise ScenarioError(
            f"{model.name}: offload.kv_host_percent is priced for attention over whole contexts; "
            f"it has {others}"
        )
    if offload.host_bytes is None:
        raise ScenarioError(
            "offload.kv_host_percent keeps keys and values in host memory: set "
            "hardware.host_memory_gb, which bounds how many"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Transfers over the host's link in a step, for all layers of one rank, in integer
    nanoseconds."""

    weights_ns: list[int]
    """Time of weights to the device, ``[max_num_batched_tokens + 1]`` by tokens."""
    disk_ns: int
    """Time per step of the disk's part, read in parallel with the rest."""
    kv_in_fixed_ns: int
    """A token of context, `FRACTION_BITS` bits behind the point; the next: a new token, back."""
    kv_out_fixed_ns: int
    hides_num: int
    """Share of the layers' computation that transfers run beside, in units of 1 / `_HIDES_DEN`."""
    weight_bytes: Array
    """Bytes behind `weights_ns`, by tokens."""
    kv_bytes_per_token: float

    def exposed_ns(self, shape: StepShape, layers_ns: int) -> int:
        """Return a step's time beyond its kernels, whose layers take ``layers_ns``."""
        tokens = shape.decode_seqs + shape.prefill_tokens
        read = shape.decode_context_tokens + shape.prefill_context_tokens
        in_ns = self.weights_ns[tokens] + (read * self.kv_in_fixed_ns >> FRACTION_BITS)
        out_ns = tokens * self.kv_out_fixed_ns >> FRACTION_BITS
        hidden_ns = layers_ns * self.hides_num // _HIDES_DEN
        return max(in_ns, out_ns, self.disk_ns if tokens else 0, hidden_ns) - hidden_ns

    def exposed_s(self, columns: Mapping[str, Array], layers_s: Array) -> tuple[Array, Array]:
        """Return the exposed seconds of ``n`` steps: those of weights, and those that state adds
        to them."""
        tokens = columns["decode_seqs"] + columns["prefill_tokens"]
        read = columns["decode_context_tokens"] + columns["prefill_context_tokens"]
        link_ns = np.array(self.weights_ns, dtype=float)[tokens.astype(np.int64)]
        weights_ns = np.maximum(link_ns, np.where(tokens > 0, float(self.disk_ns), 0.0))
        in_ns = link_ns + read * self.kv_in_fixed_ns / ONE
        longest_ns = np.maximum(weights_ns, np.maximum(in_ns, tokens * self.kv_out_fixed_ns / ONE))
        hidden_s = layers_s * self.hides_num / _HIDES_DEN
        exposed_s = np.maximum(longest_ns / NS_PER_S - hidden_s, 0.0)
        of_weights_s = np.minimum(exposed_s, np.maximum(weights_ns / NS_PER_S - hidden_s, 0.0))
        return of_weights_s, exposed_s - of_weights_s

    def link_bytes(self, shape: StepShape) -> float:
        """Return the bytes that cross the link in a step, both ways."""
        tokens = shape.decode_seqs + shape.prefill_tokens
        moved = shape.decode_context_tokens + shape.prefill_context_tokens + tokens
        return float(self.weight_bytes[tokens]) + moved * self.kv_bytes_per_token

    def slower(self, factor: float) -> Stream:
        """Return a copy with all times multiplied by ``factor``."""
        return replace(
            self,
            weights_ns=[round(ns * factor) for ns in self.weights_ns],
            disk_ns=round(self.disk_ns * factor),
            kv_in_fixed_ns=round(self.kv_in_fixed_ns * factor),
            kv_out_fixed_ns=round(self.kv_out_fixed_ns * factor),
        )


def make_stream(
    rank: RankShard, offload: Offload, by_tokens: tuple[OperatorSeconds, ...]
) -> Stream:
    """Compile an offload for one rank, whose operators are priced ``by_tokens``."""
    sizes = by_tokens[0].operator.rows
    layers = rank.local.num_layers
    # The layers of all stages: a pipeline's step is its slowest stage's share of this.
    whole = rank.layer_weight_bytes * layers / rank.stage_layers
    if offload.cpu_offload_bytes:
        # Kernels read in place only what they need: of experts, those that tokens reach.
        read = sum(op.operator.calls * op.operator.weight_bytes for op in by_tokens)
        hides = min(1.0, offload.cpu_offload_bytes / rank.layer_weight_bytes)
        weight_bytes = np.minimum(read, whole) * hides
        disk_bytes = 0.0
    else:
        streamed = float(offload.weights_host + offload.weights_disk) * whole
        weight_bytes, hides = np.where(sizes > 0, streamed, 0.0), 1.0
        disk_bytes = float(offload.weights_disk) * whole
    link = offload.link
    kv_bytes = float(offload.kv_host * rank.local.growing_state_bytes_per_token)
    to_s = weight_bytes / link.to_device_bytes_per_s
    return Stream(
        weights_ns=[to_ns(seconds) for seconds in to_s.tolist()],
        disk_ns=to_ns(disk_bytes / link.disk_read_bytes_per_s),
        kv_in_fixed_ns=round(kv_bytes / link.to_device_bytes_per_s * NS_PER_S * ONE),
        kv_out_fixed_ns=round(kv_bytes / link.from_device_bytes_per_s * NS_PER_S * ONE),
        hides_num=round(hides * _HIDES_DEN),
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes,
    )


def stream_label(offload: Offload) -> str:
    """Return the evidence label of a stream's seconds."""
    disk = [offload.link.disk_label] if offload.weights_disk else []
    return weakest((offload.link.label, *disk))
