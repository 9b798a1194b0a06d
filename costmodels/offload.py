"""Models larger than their devices: weights and state on the host, on disk, or over a network.

A layer takes as long as the slowest of what runs beside each other: weights and state on their way
to the device, new state on its way back, the disk, the device's and the host's computing.

- ZeRO-Inference (arXiv 2207.00032): all weights streamed for every step, state on the device.
- FlexGen (2303.06865): shares of weights and state on each tier; a block of several batches passes
  a layer before the next layer's weights are fetched, so weights move once a block.
- Petals (2209.01188): layers on machines of a wide-area network, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from costmodels.layers.gqa import Gqa
from costmodels.model_spec import ModelSpec
from sim.errors import ScenarioError

_ELEMENT_BYTES = 2


class Machine(NamedTuple):
    """One device with its host and disk: what each can do, achievable and not peak."""

    device_flop_per_s: float
    device_bytes_per_s: float
    to_device_bytes_per_s: float
    from_device_bytes_per_s: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    host_attention_bytes_per_s: float
    """State that the host's cores attend over a second."""


class Shares(NamedTuple):
    """Where something is: the rest is on disk."""

    device: float
    host: float

    @property
    def disk(self) -> float:
        """What is neither on the device nor on the host."""
        return max(0.0, 1.0 - self.device - self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A policy: where weights and state are, and how batches are formed."""

    weights: Shares
    state: Shares
    batch: int
    """Sequences computed at once."""
    batches: int = 1
    """Batches that pass a layer before its weights are dropped."""
    host_attention: bool = False
    """Attention over state that is not on the device runs on the host's cores."""
    weight_bits: float = 16.0
    state_bits: float = 16.0
    unpack_bytes: float = 0.0
    """Device bytes moved to unpack one compressed element, by kernels of their own."""
    overlap: bool = True
    """Transfers and computing run beside each other, else one after the other."""

    def __post_init__(self) -> None:
        for shares in (self.weights, self.state):
            if min(shares) < 0 or sum(shares) > 1 + 1e-9:
                raise ScenarioError(f"shares {shares} must be from 0 to 1 and add up to at most 1")


class LayerSeconds(NamedTuple):
    """One layer for a whole block of batches, by what works."""

    to_device: float
    from_device: float
    disk: float
    device: float
    host: float

    def seconds(self, *, overlap: bool) -> float:
        """The slowest of all, or their sum; the host's attention stands before the device's."""
        compute = self.device + self.host
        transfers = (self.to_device, self.from_device, self.disk)
        return max(*transfers, compute) if overlap else sum(transfers) + compute


def decode_layer(
    model: ModelSpec, machine: Machine, placement: Placement, context: float
) -> LayerSeconds:
    """One layer of a step in which every sequence of the block generates a token."""
    layer = _layer(model)
    seqs = placement.batch * placement.batches
    weights = layer.params * placement.weight_bits / 8
    state = seqs * context * layer.state_elements * placement.state_bits / 8
    away = placement.state.host + placement.state.disk
    moved = 0.0 if placement.host_attention else away * state
    hidden = seqs * layer.hidden * _ELEMENT_BYTES
    new_state = seqs * layer.state_elements * placement.state_bits / 8
    read = placement.weights.disk * weights + placement.state.disk * state
    unpacked = _unpacked(placement, layer.params, placement.weight_bits) * placement.batches
    unpacked += _unpacked(placement, seqs * context * layer.state_elements, placement.state_bits)
    # Every batch of a block reads the weights again.
    on_device = placement.batches * layer.params * _ELEMENT_BYTES
    on_device += (
        (1 - away * placement.host_attention)
        * seqs
        * context
        * (layer.state_elements * _ELEMENT_BYTES)
    )
    compute_s = 2.0 * seqs * layer.params / machine.device_flop_per_s
    return LayerSeconds(
        to_device=((1 - placement.weights.device) * weights + moved + hidden)
        / machine.to_device_bytes_per_s,
        from_device=(away * new_state + hidden) / machine.from_device_bytes_per_s,
        disk=read / machine.disk_read_bytes_per_s
        + placement.state.disk * new_state / machine.disk_write_bytes_per_s,
        device=max(compute_s, on_device / machine.device_bytes_per_s)
        + unpacked / machine.device_bytes_per_s,
        host=away * state / machine.host_attention_bytes_per_s if placement.host_attention else 0.0,
    )


def prefill_layer(
    model: ModelSpec, machine: Machine, placement: Placement, tokens: int
) -> LayerSeconds:
    """One layer of the prompts of a whole block, ``tokens`` each."""
    layer = _layer(model)
    seqs = placement.batch * placement.batches
    weights = layer.params * placement.weight_bits / 8
    state = seqs * tokens * layer.state_elements * placement.state_bits / 8
    away = placement.state.host + placement.state.disk
    flops = 2.0 * seqs * tokens * layer.params + 2.0 * seqs * tokens**2 * layer.attention_size
    unpacked = _unpacked(placement, layer.params, placement.weight_bits) * placement.batches
    unpacked += _unpacked(placement, seqs * tokens * layer.state_elements, placement.state_bits)
    return LayerSeconds(
        to_device=(1 - placement.weights.device) * weights / machine.to_device_bytes_per_s,
        from_device=away * state / machine.from_device_bytes_per_s,
        disk=placement.weights.disk * weights / machine.disk_read_bytes_per_s
        + placement.state.disk * state / machine.disk_write_bytes_per_s,
        device=flops / machine.device_flop_per_s + unpacked / machine.device_bytes_per_s,
        host=0.0,
    )


def offloaded_tokens_per_s(
    model: ModelSpec, machine: Machine, placement: Placement, prompt_tokens: int, output_tokens: int
) -> float:
    """Generated tokens over the seconds of prefill and decode. The prefill makes the first."""
    overlap = placement.overlap
    first_s = prefill_layer(model, machine, placement, prompt_tokens).seconds(overlap=overlap)
    middle = prompt_tokens + output_tokens / 2
    step_s = decode_layer(model, machine, placement, middle).seconds(overlap=overlap)
    total_s = model.num_layers * (first_s + (output_tokens - 1) * step_s)
    return placement.batch * placement.batches * output_tokens / total_s


def wide_area_step_s(
    stage_s: Sequence[float], round_trip_s: float, hidden_bytes: float, bytes_per_s: float
) -> float:
    """One token of one sequence through machines of a wide-area network, one after the other.

    Each hop, and the way back to the client, takes half a round trip and the hidden state's bytes.
    """
    hops = len(stage_s) + 1
    return sum(stage_s) + hops * (round_trip_s / 2 + hidden_bytes / bytes_per_s)


class _Layer(NamedTuple):
    params: float
    state_elements: float
    attention_size: int
    hidden: int


def _layer(model: ModelSpec) -> _Layer:
    """The mean layer. Raises `ScenarioError` for other attention than grouped-query."""
    layers = model.num_layers
    mixers = [(mixer, count) for mixer, count in model.mixers if isinstance(mixer, Gqa)]
    if sum(count for _, count in mixers) != layers:
        raise ScenarioError(f"{model.name}: offloading is modelled for grouped-query attention")
    return _Layer(
        params=model.linear_params / layers,
        state_elements=sum(2 * mixer.kv_size * count for mixer, count in mixers) / layers,
        attention_size=mixers[0][0].q_size,
        hidden=model.hidden_size,
    )


def _unpacked(placement: Placement, elements: float, bits: float) -> float:
    return elements * placement.unpack_bytes if bits < 16 else 0.0
