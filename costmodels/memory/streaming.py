"""A rank's weights and state that are not on its device: their bytes, and the time to stream them.

There are two ways, as in engines:

- Shares of every layer (FlexGen, arXiv 2303.06865; ZeRO-Inference, 2207.00032, streams all of it):
  the next layer's bytes arrive while this one computes, so a layer takes the longer of the two.
  Two layers' streamed parts are on the device at a time.
- Whole layers up to a number of bytes (vLLM's ``cpu_offload_gb``): kernels read them over the link
  in place. Nothing is fetched ahead, so the computation of resident layers hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from costmodels.hardware.gpus import GIB
from costmodels.hardware.links import HostLink
from costmodels.layouts.shard import RankShard
from sim.errors import ScenarioError
from sim.evidence import Source

_BUFFERED_LAYERS = 2


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
