"""The kernel that multiplies routed experts: chosen by the engine's own rules, priced by its tiles.

A grouped GEMM fills each expert's rows up to whole tiles, so that its rate falls with the rows of
an expert; how far depends on the kernel. `expert_kernels.yaml` has the rules and the rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from costmodels.datafile import read_data
from costmodels.engines.attention_backends import architecture
from costmodels.engines.profile import EngineProfile
from costmodels.formats import load_format
from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.layouts.shard import RankShard
from costmodels.models.layers.moe import Moe
from costmodels.work import Array, Operator
from sim.evidence import Source

_FILE, _SHAPES = "engines/expert_kernels.yaml", "engines/tuned_experts.yaml"
_TRITON = "triton"


class Rates(NamedTuple):
    """What a kernel reaches on a GPU."""

    compute: float
    """Share of the peak that it multiplies at."""
    weights: float
    """Bytes per second of weights; ``activations``: of inputs and outputs."""
    activations: float
    expert_s: float
    """Seconds to begin each expert that has rows."""
    fixed_s: float
    label: str
    source: str


class GemmParts(NamedTuple):
    """Seconds of one call of a grouped GEMM by cause; arrays are ``[n]``."""

    compute_s: Array
    weights_s: Array
    activations_s: Array
    fixed_s: float

    @property
    def work_s(self) -> Array:
        """Seconds of its work: products and weights hide each other in part."""
        hidden: Array = np.hypot(self.compute_s, self.weights_s)
        return hidden + self.activations_s


@dataclass(frozen=True, kw_only=True)
class ExpertKernel:
    """The kernel of one model's routed experts on one GPU."""

    name: str
    what: str
    """The kernel in words."""
    shape: str
    """The experts that it multiplies, as vLLM names them: their number, and one's width."""
    is_untuned: bool = False
    """Whether it runs in a default configuration although others are tuned."""
    rates: Rates | None = None
    """None: the constants of a grouped GEMM serve."""
    tile: Mapping[str, Any]
    multiples: tuple[int, int]
    layout: Mapping[str, Any] | None
    inputs: int
    """Matrices of an expert before its activation."""
    hidden: int
    width: int
    local_experts: int
    """Experts on a rank; ``num_experts``: on all of them."""
    num_experts: int
    top_k: int

    @property
    def filled(self) -> float:
        """Elements of a matrix as the kernel stores it, over those that the model has."""
        sizes = zip((self.hidden, self.width), self.multiples, strict=True)
        found = 1.0
        for size, multiple in sizes:
            found *= -(-size // multiple) * multiple / size
        return found

    @property
    def stored(self) -> float:
        """Elements of a rank's matrices as the kernel keeps them, over those that the model has.

        Some kernels read no filled-up rows but keep matrices in a layout with whole tiles.
        """
        if self.layout is None:
            return self.filled
        multiple = int(self.layout["multiple"])
        hidden, width = (
            -(-size // multiple) * multiple / size for size in (self.hidden, self.width)
        )
        if self.layout["sides"] == "both":
            return hidden * width
        # Only the side that products are summed over: the inputs of up and gate, and of down.
        return (self.inputs * hidden + width) / (self.inputs + 1)

    def parts(self, operator: Operator, gpu: GpuSpec, peak: float) -> GemmParts:
        """Return the seconds of one call. Requires rates, and the operator's matrix."""
        assert self.rates is not None, "without rates, the roofline's constants price it"
        assert operator.matrix is not None, "a grouped GEMM says its matrix"
        inner, outer = operator.matrix
        routed = operator.flops / (2.0 * inner * outer)
        rows = np.maximum(operator.rows, 1e-9)
        tile = self._tile_rows(routed)
        whole = np.maximum(tile, rows + tile / 2) / rows
        from_memory = gpu.hbm_bytes_per_s * float(read_data(_FILE)["memory_share"])
        hit = operator.weight_bytes / (inner * outer * load_format(operator.weights).moved_bytes)
        filled, weights = self.filled, min(self.rates.weights, from_memory)
        return GemmParts(
            compute_s=operator.flops * whole * filled / (peak * self.rates.compute),
            weights_s=operator.weight_bytes * filled / weights + hit * self.rates.expert_s,
            activations_s=operator.activation_bytes / self.rates.activations,
            fixed_s=self.rates.fixed_s,
        )

    def sources(self) -> list[Source]:
        """Return the rates with their label and source; none without rates."""
        if self.rates is None:
            return []
        *shares, label, source = self.rates
        named = zip(Rates._fields, shares, strict=False)
        return [
            Source(what=f"{self.name} {name}", value=value, label=label, source=source)
            for name, value in named
        ]

    def _tile_rows(self, routed: Array) -> Array:
        """Return the rows of a tile by the copies of tokens that a rank computes."""
        tokens = routed / self.top_k * (self.num_experts / self.local_experts)
        counts = {
            "tokens": tokens,
            "tokens_per_expert": tokens / self.num_experts,
            "rows": routed / self.local_experts,
        }
        count, steps = counts[self.tile["by"]], self.tile["steps"]
        found: Array = np.select(
            [count <= limit for limit, _ in steps] or [np.zeros(len(count), bool)],
            [float(rows) for _, rows in steps] or [0.0],
            default=float(self.tile["most"]),
        )
        return found


def expert_kernel(shard: RankShard, gpu: GpuSpec, profile: EngineProfile) -> ExpertKernel | None:
    """Return the kernel that the engine chooses for a rank's routed experts.

    None for a model without experts, and if no rule of the engine's is known.
    """
    experts = next((ffn for ffn, _ in shard.local.ffns if isinstance(ffn, Moe)), None)
    rule = None if experts is None else _rule(shard, gpu, profile)
    if experts is None or rule is None:
        return None
    placement = experts.placement
    local = placement.most_experts if placement else experts.num_experts
    name = rule["kernel"]
    if name == _TRITON:
        name = _configuration(shard, gpu, profile, local, experts.width)
    row = read_data(_FILE)["kernels"][name]
    rates = row.get("rates", {}).get(architecture(gpu))
    return ExpertKernel(
        name=name,
        what=row["what"],
        shape=f"E={local}, N={experts.width}",
        is_untuned=row.get("is_untuned", False),
        rates=None if rates is None else _rates(rates, gpu),
        tile=row.get("tile", {}),
        multiples=tuple(row.get("multiples", (1, 1))),
        layout=_layout(row, shard.model.model_type),
        inputs=experts.inputs,
        hidden=experts.latent or shard.local.hidden_size,
        width=experts.width,
        local_experts=local,
        num_experts=experts.num_experts,
        top_k=experts.top_k,
    )


def _layout(row: Mapping[str, Any], model_type: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = row.get("stored")
    is_met = found is not None and model_type in found.get("model_types", [model_type])
    return found if is_met else None


def _rates(row: Mapping[str, Any], gpu: GpuSpec) -> Rates:
    """Return a row's rates; those of SMs go with their number, where it is known."""
    values = {"expert_s": 0.0, **row}
    there, here = load_gpu(values.pop("device")).num_sms, gpu.num_sms
    share = here / there if here and there else 1.0
    for name in ("weights", "activations"):
        values[name] *= share
    return Rates(**values)


def _rule(shard: RankShard, gpu: GpuSpec, profile: EngineProfile) -> Mapping[str, Any] | None:
    precision, here = shard.local.precision, architecture(gpu)
    weights, multiplied = precision.experts, precision.matrix(precision.experts)[1].name
    if not profile.kernel_rules or here is None:
        return None
    whole = shard.layout.enable_expert_parallel
    for rule in read_data(_FILE)["choice"]:
        fits = weights in rule["weights"] and here in rule.get("architectures", [here])
        fits = fits and rule.get("activations", multiplied) == multiplied
        if fits and rule.get("whole_experts", whole) == whole and covers(rule, profile):
            found: Mapping[str, Any] = rule
            return found
    return None


def _configuration(
    shard: RankShard, gpu: GpuSpec, profile: EngineProfile, experts: int, width: int
) -> str:
    """Return the configuration of Triton experts: tuned for a shape, or the version's default."""
    weights = shard.local.precision.experts
    stored = "bfloat16" if weights == "float16" else weights
    shapes = read_data(_SHAPES)["shapes"].get(gpu.name, {}).get(stored, {})
    if width in shapes.get(experts, []):
        return "triton_block_tuned" if weights == "fp8_block" else "triton_tuned"
    for rule in read_data(_FILE)["default_configurations"]:
        if weights in rule.get("weights", [weights]) and covers(rule, profile):
            return str(rule["kernel"])
    raise ValueError("expert_kernels.yaml: the last default configuration covers everything")


def covers(rule: Mapping[str, Any], profile: EngineProfile) -> bool:
    """Return whether a rule holds for the engine's version."""
    version = version_key(profile.kernel_rules)
    since, before = rule.get("since"), rule.get("before")
    return (since is None or version >= version_key(since)) and (
        before is None or version < version_key(before)
    )


def version_key(version: str) -> tuple[int, ...]:
    """Return a version such as ``0.11.1`` as numbers that compare in order."""
    return tuple(int(part) for part in version.split("."))
