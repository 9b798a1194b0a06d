"""Models larger than their devices: weights and state on the host, on disk, or over a network.

A layer takes as long as the slowest of what runs beside each other: weights and state on their way
to the device, new state on its way back, the disk, the device's and the host's computing. What runs
beside what depends on where an engine waits.

- ZeRO-Inference (arXiv 2207.00032): all weights streamed for every step, state on the device.
- FlexGen (2303.06865): shares of weights and state on each tier; a block of several batches passes
  a layer before the next layer's weights are fetched, so weights move once a block. It waits for
  everything after each batch, and attention and FFN are layers of their own: the weights of the
  next one come with the first batch alone (generation_loop_overlap_multi_batch of flex_opt.py).
- Petals (2209.01188): layers on machines of a wide-area network, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from costmodels.models.layers.gqa import Gqa
from costmodels.models.spec import ModelSpec
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
    """Device bytes moved to unpack one compressed element, by kernels of their own; next: to pack
    one of new state."""
    pack_bytes: float = 0.0
    state_copy_bytes: float = 0.0
    """Device bytes moved to lay out one element of state for a matrix product, before it is read
    there; next: to write, mask, soften and read one attention score of a prompt."""
    score_bytes: float = 0.0
    overlap: bool = True
    """Transfers and computing run beside each other, else one after the other."""
    waits_each_batch: bool = False
    """The next matrices' weights move beside the first batch alone, as in FlexGen."""

    def __post_init__(self) -> None:
        for shares in (self.weights, self.state):
            if min(shares) < 0 or sum(shares) > 1 + 1e-9:
                raise ScenarioError(f"shares {shares} must be from 0 to 1 and add up to at most 1")


class PartSeconds(NamedTuple):
    """A layer's attention or FFN for a whole block of batches, by what works."""

    weights_in: float
    """Weights over the host link; next: off the disk."""
    weights_off_disk: float
    state_in: float
    """State and activations over the host link; next: new state over it back; then the disk."""
    state_out: float
    state_disk: float
    device: float
    host: float

    @property
    def compute(self) -> float:
        """The host's attention stands before the device's."""
        return self.device + self.host


def layer_seconds(parts: Sequence[PartSeconds], placement: Placement) -> float:
    """One layer of a block: the parts as the engine's waiting allows."""
    if not placement.waits_each_batch:
        whole = PartSeconds(*map(sum, zip(*parts, strict=True)))
        transfers = (
            whole.weights_in + whole.state_in,
            whole.state_out,
            whole.weights_off_disk + whole.state_disk,
        )
        if placement.overlap:
            return max(*transfers, whole.compute)
        return sum(transfers) + whole.compute
    total, batches = 0.0, placement.batches
    for part, after in zip(parts, (*parts[1:], parts[0]), strict=True):
        a_batch = max(part.compute, part.state_in, part.state_out, part.state_disk) / batches
        total += max(a_batch, after.weights_in, after.weights_off_disk) + (batches - 1) * a_batch
    return total


def decode_layer(
    model: ModelSpec, machine: Machine, placement: Placement, context: float
) -> tuple[PartSeconds, PartSeconds]:
    """Attention and FFN of a step in which every sequence of the block generates a token."""
    layer = _layer(model)
    seqs = placement.batch * placement.batches
    elements = seqs * context * layer.state_elements
    state = elements * placement.state_bits / 8
    away = placement.state.host + placement.state.disk
    new_state = seqs * layer.state_elements * placement.state_bits / 8
    hidden = seqs * layer.hidden * _ELEMENT_BYTES
    attended = (1 - away * placement.host_attention) * elements
    unpacked = _unpacked(placement, elements, placement.state_bits)
    unpacked += attended * placement.state_copy_bytes
    matrices_s = [
        _matrices_s(machine, placement, params, seqs, also_read)
        for params, also_read in (
            (layer.attention_params, attended * _ELEMENT_BYTES),
            (layer.ffn_params, 0.0),
        )
    ]
    attention = PartSeconds(
        *_weights_s(machine, placement, layer.attention_params),
        state_in=(away * state * (not placement.host_attention) + hidden)
        / machine.to_device_bytes_per_s,
        state_out=(away * new_state + hidden) / machine.from_device_bytes_per_s,
        state_disk=placement.state.disk
        * (state / machine.disk_read_bytes_per_s + new_state / machine.disk_write_bytes_per_s),
        device=matrices_s[0] + unpacked / machine.device_bytes_per_s,
        host=away * state / machine.host_attention_bytes_per_s if placement.host_attention else 0.0,
    )
    ffn = PartSeconds(
        *_weights_s(machine, placement, layer.ffn_params),
        state_in=0.0,
        state_out=0.0,
        state_disk=0.0,
        device=matrices_s[1],
        host=0.0,
    )
    return attention, ffn


def prefill_layer(
    model: ModelSpec, machine: Machine, placement: Placement, tokens: int
) -> tuple[PartSeconds, PartSeconds]:
    """Attention and FFN of the prompts of a whole block, ``tokens`` each."""
    layer = _layer(model)
    seqs = placement.batch * placement.batches
    elements = seqs * tokens * layer.state_elements
    state = elements * placement.state_bits / 8
    away = placement.state.host + placement.state.disk
    packed = elements * placement.pack_bytes if placement.state_bits < 16 else 0.0
    scores = seqs * tokens**2 * layer.heads * placement.score_bytes
    # Scores and values: the lower half of the square alone, but where scores are kept.
    square = 4.0 if placement.score_bytes else 2.0
    attention_flops = square * seqs * tokens**2 * layer.attention_size
    attention = PartSeconds(
        *_weights_s(machine, placement, layer.attention_params),
        state_in=0.0,
        state_out=away * state / machine.from_device_bytes_per_s,
        state_disk=placement.state.disk * state / machine.disk_write_bytes_per_s,
        device=attention_flops / machine.device_flop_per_s
        + (packed + scores) / machine.device_bytes_per_s
        + _matrices_s(machine, placement, layer.attention_params, seqs * tokens),
        host=0.0,
    )
    ffn = PartSeconds(
        *_weights_s(machine, placement, layer.ffn_params),
        state_in=0.0,
        state_out=0.0,
        state_disk=0.0,
        device=_matrices_s(machine, placement, layer.ffn_params, seqs * tokens),
        host=0.0,
    )
    return attention, ffn


def offloaded_tokens_per_s(
    model: ModelSpec, machine: Machine, placement: Placement, prompt_tokens: int, output_tokens: int
) -> float:
    """Generated tokens over the seconds of prefill and decode. The prefill makes the first."""
    first_s = layer_seconds(prefill_layer(model, machine, placement, prompt_tokens), placement)
    middle = prompt_tokens + output_tokens / 2
    step_s = layer_seconds(decode_layer(model, machine, placement, middle), placement)
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
    attention_params: float
    ffn_params: float
    state_elements: float
    attention_size: int
    heads: int
    hidden: int


def _layer(model: ModelSpec) -> _Layer:
    """The mean layer. Raises `ScenarioError` for other attention than grouped-query."""
    layers = model.num_layers
    mixers = [(mixer, count) for mixer, count in model.mixers if isinstance(mixer, Gqa)]
    if sum(count for _, count in mixers) != layers:
        raise ScenarioError(f"{model.name}: offloading is modelled for grouped-query attention")
    attention = sum(mixer.params(model.hidden_size).attention * count for mixer, count in mixers)
    return _Layer(
        attention_params=attention / layers,
        ffn_params=(model.params().matrices - attention) / layers,
        state_elements=sum(2 * mixer.kv_size * count for mixer, count in mixers) / layers,
        attention_size=mixers[0][0].q_size,
        heads=mixers[0][0].heads,
        hidden=model.hidden_size,
    )


def _weights_s(machine: Machine, placement: Placement, params: float) -> tuple[float, float]:
    """Return the seconds to load some matrices: over the host link, and from the disk."""
    num_bytes = params * placement.weight_bits / 8
    return (
        (1 - placement.weights.device) * num_bytes / machine.to_device_bytes_per_s,
        placement.weights.disk * num_bytes / machine.disk_read_bytes_per_s,
    )


def _matrices_s(
    machine: Machine, placement: Placement, params: float, rows: float, also_read: float = 0.0
) -> float:
    """The device's seconds for some matrices: every batch of a block reads and unpacks them."""
    read = placement.batches * params * _ELEMENT_BYTES + also_read
    unpacked = _unpacked(placement, params, placement.weight_bits) * placement.batches
    compute_s = 2.0 * rows * params / machine.device_flop_per_s
    return max(compute_s, read / machine.device_bytes_per_s) + (
        unpacked / machine.device_bytes_per_s
    )


def _unpacked(placement: Placement, elements: float, bits: float) -> float:
    return elements * placement.unpack_bytes if bits < 16 else 0.0
