"""Decode attention that reads a prefix of several sequences once: a kernel of its own, and a merge.

The queries of all sequences that share a prefix are multiplied with its keys and values together:
its bytes are read once, its FLOPs are still spent per sequence, at the efficiency of prompts'
kernels (matrix times matrix). What follows the prefix is read as usual, and the parts are merged by
their softmax sums (Hydragen, arXiv 2402.05099; ChunkAttention, 2402.15220).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.roofline import tiled_rows
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.parts import ContextTerm, Mixer
from costmodels.operators.operators import term_operator
from costmodels.work import Array, Operator, elementwise
from sim.errors import ScenarioError
from sim.shape import SharedSums, StepShape

# vLLM 0.25, vllm/v1/attention/backends/flash_attn.py, use_cascade_attention.
_LEAST_TOKENS, _LEAST_SEQS, _TILE = 256, 8, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRates:
    """Rates of all layers of one kind of attention, on one rank."""

    heads: int
    kv_heads: int
    pair_s: float
    """Compute seconds per query of a sequence and token, evenly spread over the device."""
    read_s: float
    """Memory seconds per token's keys and values."""
    part_s: float
    """Memory seconds per partial result written, or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixRates:
    """Seconds of the prefix kernel and the merge, from `sim.shape.SharedSums`."""

    kernel: str
    """``cascade`` or ``tree``, as `sim.engine.config.EngineConfig.shared_prefix_attention`."""
    layers: tuple[LayerRates, ...]
    fixed_s: float
    """Fixed seconds of the prefix kernel and the merge, all layers."""
    tile_rows: int
    num_sms: int
    seconds_factor: float = 1.0

    def cascades(self, shape: StepShape) -> bool:
        """Return whether a step runs vLLM's cascade attention."""
        return self.kernel == "cascade" and self.is_used(shape)

    def is_used(self, shape: StepShape) -> bool:
        """Return whether a step uses this kernel; ``cascade`` follows vLLM's own rule."""
        if not shape.shared or not shape.shared[1]:
            return False
        if self.kernel == "tree":
            return True
        tokens, (layer,) = shape.shared[1], self.layers
        decodes, prefills = shape.decode_seqs, shape.prefill_seqs
        if tokens < _LEAST_TOKENS or decodes + prefills < _LEAST_SEQS:
            return False
        queries = layer.heads // layer.kv_heads
        if prefills or queries == 1:  # the alternative is then not split-KV decoding
            return True
        tiles = -(-tokens // _TILE)
        alone = decodes * layer.kv_heads * -(-queries // _TILE) * tiles
        return self._waves(layer, decodes) * tiles < -(-alone // self.num_sms)

    def work_s(self, shape: StepShape) -> float:
        """Return the seconds of the prefix kernel and the merge in a step that uses them,
        without fixed time."""
        tokens, reads, parts = shape.shared
        # Each part is written and read, and so is each sequence's result beyond its prefix.
        merged = 2 * parts + 2 * min(shape.decode_seqs, parts)
        seconds = 0.0
        for layer in self.layers:
            if self.kernel == "tree":
                queries = layer.heads // layer.kv_heads
                rows = tiled_rows(np.array([tokens / reads * queries]), self.tile_rows)
                rows_per_head = float(rows[0]) / queries
            elif shape.prefill_seqs:  # queries of prompts are in the same kernel and fill it
                rows_per_head = tokens / reads
            else:
                busy = self.num_sms / layer.heads
                rows_per_head = self._waves(layer, shape.decode_seqs) * _TILE * busy
            seconds += max(reads * rows_per_head * layer.pair_s, reads * layer.read_s)
            seconds += merged * layer.part_s
        return seconds * self.seconds_factor

    def of_columns(self, columns: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Return work seconds, fixed seconds, and the context tokens they replace, of ``n``
        steps: ``[n]`` each."""
        names = ("decode_seqs", "prefill_seqs", *SharedSums._fields)
        rows = np.stack([columns[name] for name in names], axis=1)
        different, place = np.unique(rows, axis=0, return_inverse=True)
        found = np.zeros((len(different), 3))
        for index, row in enumerate(different.tolist()):
            decodes, prefills, *shared = map(int, row)
            shape = StepShape(decodes, prefill_seqs=prefills, shared=tuple(shared))
            if self.is_used(shape):
                found[index] = self.work_s(shape), self.fixed_s, shared[0]
        work_s, fixed_s, tokens = found[place.reshape(-1)].T
        return work_s, fixed_s, tokens

    def slower(self, factor: float) -> SharedPrefixRates:
        """Return a copy with all times multiplied by ``factor``."""
        return replace(
            self,
            seconds_factor=self.seconds_factor * factor,
            fixed_s=self.fixed_s * factor,
        )

    def _waves(self, layer: LayerRates, decodes: int) -> int:
        """Return the rounds of blocks; a block is a query head's tile of sequences that walks
        the whole prefix."""
        return -(-layer.heads * -(-decodes // _TILE) // self.num_sms)


def shared_prefix_rates(
    kernel: str,
    shard: RankShard,
    efficiency: Efficiency,
    num_sms: int | None,
    seconds: Callable[[Operator], float],
) -> SharedPrefixRates | None:
    """Return the rates of a rank's layers by ``kernel``; None for ``none``.

    ``seconds`` prices all calls of an operator's work. Raises `ScenarioError` if no such kernel
    exists for the model's layers, or the device's number of SMs is not known.
    """
    if kernel == "none":
        return None
    if num_sms is None:
        raise ScenarioError(
            f"engine.shared_prefix_attention {kernel} needs the GPU's number of SMs, which is not "
            "known for this one; leave it at none"
        )
    layers = []
    for any_mixer, count in shard.local.mixers:
        mixer = _covered(kernel, shard, any_mixer)
        (term,) = mixer.attention(shard.local.precision).decode

        def a_unit(
            flops: float, reads: float, term: ContextTerm = term, count: int = count
        ) -> float:
            return seconds(term_operator(term, count, np.array([flops]), np.array([reads])))

        out = mixer.heads * mixer.kv_lora if isinstance(mixer, Mla) else mixer.q_size
        # The result in the model's type, and a 32-bit softmax sum per head.
        part_bytes = out * shard.local.dtype_bytes + 4 * mixer.heads
        layers.append(
            LayerRates(
                heads=mixer.heads,
                kv_heads=mixer.kv_heads,
                pair_s=a_unit(1.0, 0.0),
                read_s=a_unit(0.0, 1.0),
                part_s=seconds(elementwise("merge", count, part_bytes, np.array([1.0]))),
            )
        )
    launches_s = efficiency.attention_fixed_s + efficiency.elementwise_fixed_s
    return SharedPrefixRates(
        kernel=kernel,
        layers=tuple(layers),
        fixed_s=shard.local.num_layers * launches_s,
        tile_rows=efficiency.tile_rows,
        num_sms=num_sms,
    )


def _covered(kernel: str, shard: RankShard, mixer: Mixer) -> Gqa | Mla:
    """Return the layer if the kernel covers it; raises `ScenarioError` if not."""
    name = shard.model.name
    if not isinstance(mixer, Gqa | Mla):
        raise ScenarioError(
            f"engine.shared_prefix_attention {kernel} reads a prefix once for full attention (gqa) "
            f"and latent attention (mla); {name} has layers of kind "
            f"{mixer.kind}, whose reads are no whole prefix, or no shared one"
        )
    if len(mixer.attention(shard.local.precision).decode) > 1:
        raise ScenarioError(
            f"engine.shared_prefix_attention {kernel} is not priced for a KV cache that keeps its "
            "newest tokens in 16 bits; set kv.cache_dtype to auto or fp8"
        )
    if kernel == "cascade" and (isinstance(mixer, Mla) or len(shard.local.mixers) > 1):
        raise ScenarioError(
            "engine.shared_prefix_attention cascade is vLLM's FlashAttention path, which covers "
            f"full attention alone, alike in all layers; {name} has {mixer.kind}: "
            "set it to none, or to tree for a kernel of another engine"
        )
    return mixer
