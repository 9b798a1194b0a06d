"""The kernel of each kind of attention, as the engine chooses it, where the constants fit another.

`attention_kernels.yaml` has the rules. Most kernels are those that the constants of a GPU were
fitted to; a few compute more than a model asks for: rows or heads of tiles that stay empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodels.datafile import read_data
from costmodels.engines.attention_backends import architecture
from costmodels.engines.expert_kernels import covers, version_key
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.compressed import CompressedMqa
from costmodels.models.layers.dsa import Dsa
from costmodels.models.layers.gqa import softmax_attention
from costmodels.models.layers.mla import SERVED_FP8
from costmodels.models.layers.parts import Mixer
from sim.evidence import Source

_FILE = "engines/attention_kernels.yaml"


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """The kernel of one kind of layer."""

    name: str
    what: str
    """The kernel in words."""
    served: Mixer
    """The layer as the kernel computes it."""
    mixed_tile_rows: int = 0
    """Rows of a tile that each query head of a decoding sequence takes in a step with prompts; 0:
    grouped heads share a tile there too."""
    prefill_flop_per_s: float | None = None
    """FLOPs per second of prompts; None: the constants'. The next: of decodes."""
    decode_flop_per_s: float | None = None
    decode_memory: float | None = None
    """Share of the memory bandwidth at which decodes read the cache; None: the constants'."""
    prefill_memory: float | None = None
    """Share of the memory bandwidth at which the kernels of a prompt's chunks move their tensors;
    None: the constants'."""
    label: str = ""
    """Evidence label of what differs from the constants; empty if nothing does."""
    source: str = ""

    def sources(self) -> list[Source]:
        """Return what differs from the constants, with its label and source."""
        values = {
            "mixed_tile_rows": self.mixed_tile_rows or None,
            "prefill_flop_per_s": self.prefill_flop_per_s,
            "decode_flop_per_s": self.decode_flop_per_s,
            "decode_memory": self.decode_memory,
            "prefill_memory": self.prefill_memory,
        }
        return [
            Source(what=f"{self.name} {name}", value=value, label=self.label, source=self.source)
            for name, value in values.items()
            if value is not None
        ]


def attention_kernels(
    shard: RankShard, gpu: GpuSpec, profile: EngineProfile
) -> dict[Mixer, AttentionKernel]:
    """Return the kernel of each kind of layer of a rank; without those whose rule is not known."""
    found: dict[Mixer, AttentionKernel] = {}
    if not profile.kernel_rules:
        return found
    for mixer, _ in shard.local.mixers:
        name = _chosen(mixer, gpu, profile)
        if name is not None:
            found[mixer] = _kernel(name, mixer, shard, gpu, profile)
    return found


def _chosen(mixer: Mixer, gpu: GpuSpec, profile: EngineProfile) -> str | None:
    softmax = softmax_attention(mixer)
    for rule in read_data(_FILE)["choice"]:
        here = architecture(gpu)
        if mixer.kind not in rule["kinds"] or here not in rule.get("architectures", [here]):
            continue
        if softmax is not None and not softmax.sinks and rule.get("sinks", False):
            continue
        if softmax is not None and softmax.head_dim <= rule.get("heads_above", 0):
            continue
        if rule.get("any_engine", False) or (profile.engine == "vLLM" and covers(rule, profile)):
            return str(rule["kernel"])
    return None


def _kernel(
    name: str, mixer: Mixer, shard: RankShard, gpu: GpuSpec, profile: EngineProfile
) -> AttentionKernel:
    row = read_data(_FILE)["kernels"][name]
    is_fp8_cache = shard.local.precision.kv == "fp8"
    differs = is_fp8_cache or "fp8_cache_memory" not in row
    kernel = AttentionKernel(
        name=name,
        what=row["what"],
        served=mixer,
        mixed_tile_rows=row.get("mixed_tile_rows", 0),
        decode_memory=row.get("fp8_cache_memory") if is_fp8_cache else None,
        prefill_memory=row.get("prefill_memory"),
        label=row.get("label", "") if differs else "",
        source=row.get("source", "") if differs else "",
    )
    l2_bytes_per_s = read_data(_FILE)["l2_bytes_per_s"].get(gpu.name)
    if "tile_rows" in row and l2_bytes_per_s is not None:
        # Each element of two bytes serves two FLOPs for every row of the tile.
        kernel = replace(kernel, prefill_flop_per_s=l2_bytes_per_s * row["tile_rows"])
    if isinstance(mixer, Dsa):
        return _sparse(kernel, row, mixer, shard, gpu, profile)
    if isinstance(mixer, CompressedMqa):
        return _compressed(kernel, row, mixer, gpu)
    return kernel


def _compressed(
    kernel: AttentionKernel, row: Mapping[str, Any], mixer: CompressedMqa, gpu: GpuSpec
) -> AttentionKernel:
    multiple = row["query_heads"]
    return replace(
        kernel,
        served=replace(mixer, heads=-(-mixer.heads // multiple) * multiple),
        prefill_flop_per_s=_rate("prefill", gpu),
        decode_flop_per_s=_rate("decode", gpu),
    )


def _sparse(
    kernel: AttentionKernel,
    row: Mapping[str, Any],
    mixer: Dsa,
    shard: RankShard,
    gpu: GpuSpec,
    profile: EngineProfile,
) -> AttentionKernel:
    is_fp8 = shard.local.precision.kv in ("fp8", SERVED_FP8)
    multiple, heads = row["query_heads"], mixer.mla.heads
    on_decode_kernel = is_fp8 and heads < row["fp8_below"]
    since = version_key(row["dense_prompts_since"])
    served = replace(
        mixer,
        query_heads=-(-heads // multiple) * multiple,
        computes_all=on_decode_kernel,
        dense_prompts=version_key(profile.kernel_rules) >= since,
    )
    decode = _rate("decode", gpu)
    prefill = decode if on_decode_kernel else _rate("prefill", gpu)
    return replace(
        kernel,
        served=served,
        prefill_flop_per_s=prefill,
        decode_flop_per_s=decode if is_fp8 else prefill,
    )


def _rate(part: str, gpu: GpuSpec) -> float:
    """Return a sparse kernel's published FLOPs per second, on the GPU by its peak."""
    suffix = "_b200" if architecture(gpu) == "blackwell" else ""
    row = read_data("hardware/kernel_curves.yaml")["latent_attention"]
    known = row[f"flashmla_sparse_{part}{suffix}"]
    of_peak = known["flop_per_s"] / load_gpu(known["device"]).bf16_flop_per_s
    return float(of_peak * gpu.bf16_flop_per_s)
