"""Attention by generation of kernels, in place of the constants fitted to what an engine chose.

A curve share(S) = most / (1 + half / S) of the peak, over a causal prompt of S tokens and S^2 / 2
pairs, takes (pairs + half / 2 S) / most: the compute share ``most``, and query tiles of ``half``
tokens, of which a chunk's last one is half empty. So the two numbers of a curve replace
``attention_compute`` and ``attention_query_tile_tokens``, and a step is still priced from its sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from costmodels.datafile import read_data
from costmodels.hardware.efficiency import Efficiency
from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.hardware.kernel_curves import attention_curve, attention_shares, fit_saturation
from costmodels.models.spec import ModelSpec
from sim.accounts import DECODE_STATE_READS, PREFILL_COMPUTE, PREFILL_MEMORY
from sim.errors import ScenarioError
from sim.evidence import Evidence, Source

BackendName = Literal["auto", "unfused", "fa1", "fa2", "fa3", "flashmla"]
_FILE = "hardware/kernel_curves.yaml"
_SOFTMAX = {"gqa", "sliding", "mla"}
_COMPUTE, _TILE, _MEMORY = (
    "attention_compute",
    "attention_query_tile_tokens",
    "attention_memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    """Replacement of a GPU's attention constants."""

    name: str
    efficiency: Efficiency
    """Constants of prompts, and of decodes if ``decode`` is None."""
    decode: Efficiency | None = None
    score_passes: int = 0
    """Number of times that scores of query-key pairs cross device memory, in 16 bits."""
    label: str
    source: str
    accounts: tuple[str, ...]
    """The time accounts that its figures affect."""

    def sources(self) -> list[Source]:
        """Return the decode constants, and how scores are materialized; `efficiency` has the
        rest."""
        found: dict[str, float] = {}
        if DECODE_STATE_READS in self.accounts and self.decode is not None:
            found = {name: getattr(self.decode, name) for name in (_COMPUTE, _MEMORY)}
        if self.score_passes:
            found["score passes"] = self.score_passes
        return [
            Source(
                what=f"{self.name} decode {name}",
                value=value,
                label=self.label,
                source=self.source,
            )
            for name, value in found.items()
        ]


def attention_backend(
    name: BackendName, gpu: GpuSpec, model: ModelSpec, efficiency: Efficiency
) -> AttentionBackend | None:
    """Return a backend's constants on a GPU, on top of ``efficiency``; None for auto.

    Raises `ScenarioError` if the GPU or the model has no such kernels, or no figure is published.
    """
    if name == "auto":
        return None
    kinds = {mixer.kind for mixer, _ in model.mixers}
    row = _row(name, gpu)
    if name == "flashmla":
        return _latent(row, gpu, model, kinds, efficiency)
    if name == "unfused":
        return _unfused(model, kinds, efficiency)
    if not kinds <= _SOFTMAX:
        raise ScenarioError(
            f"engine.attention_backend {name}: {model.name} has {', '.join(sorted(kinds))} layers; "
            f"it is priced for {', '.join(sorted(_SOFTMAX))}"
        )
    return _fused(name, row, efficiency)


def architecture(gpu: GpuSpec) -> str | None:
    """Return the GPU's generation for the choice of kernels; None if it is not known."""
    rows = read_data(_FILE)["architectures"]
    return next((name for name, gpus in rows.items() if gpu.name in gpus), None)


def _row(name: str, gpu: GpuSpec) -> Any:
    rows = read_data(_FILE)["attention_backends"]
    found, here = rows[name], architecture(gpu)
    if "all" in found:
        return found["all"]
    if here not in found:
        others = [other for other in rows if "all" in rows[other] or here in rows[other]]
        raise ScenarioError(
            f"engine.attention_backend {name} has no kernels, or no published figure, on "
            f"{gpu.name}: it runs on {', '.join(found)}; {gpu.name} has auto, {', '.join(others)}"
        )
    return found[here]


def _fused(name: str, row: str, efficiency: Efficiency) -> AttentionBackend:
    if row in ("fa1", "shares"):
        lowest, highest = attention_shares(name)
        known = read_data(_FILE)["attention_shares"][name]
        source = f"{known['source']} (the middle of the range)"
        changed: dict[str, float] = {_COMPUTE: (lowest + highest) / 2}
    else:
        curve = attention_curve(row)
        known, source = read_data(_FILE)["attention"][row], curve.source
        fitted = fit_saturation(curve.points)
        changed = {_COMPUTE: fitted.most, _TILE: fitted.half_tokens}
    return AttentionBackend(
        name=name,
        efficiency=_with(efficiency, changed, known["label"], source),
        decode=efficiency,
        label=known["label"],
        source=source,
        accounts=(PREFILL_COMPUTE,),
    )


def _unfused(model: ModelSpec, kinds: set[str], efficiency: Efficiency) -> AttentionBackend:
    if kinds != {"gqa"}:
        raise ScenarioError(
            f"engine.attention_backend unfused is priced for full grouped-query attention; "
            f"{model.name} has {', '.join(sorted(kinds))}"
        )
    known = read_data(_FILE)["unfused"]
    # Its two products are GEMMs of whole tiles.
    changed = {_COMPUTE: efficiency.gemm_compute, _TILE: 0.0}
    return AttentionBackend(
        name="unfused",
        efficiency=_with(efficiency, changed, known["label"], known["source"]),
        score_passes=known["passes"],
        label=known["label"],
        source=known["source"],
        accounts=(PREFILL_COMPUTE, PREFILL_MEMORY, DECODE_STATE_READS),
    )


def _latent(
    row: Mapping[str, list[str]],
    gpu: GpuSpec,
    model: ModelSpec,
    kinds: set[str],
    efficiency: Efficiency,
) -> AttentionBackend:
    sort = {"mla": "dense", "dsa": "sparse"}.get(next(iter(kinds)) if len(kinds) == 1 else "")
    if sort is None:
        raise ScenarioError(
            f"engine.attention_backend flashmla is of latent attention (MLA, DSA); {model.name} "
            f"has {', '.join(sorted(kinds))}"
        )
    if sort not in row:
        raise ScenarioError(
            f"engine.attention_backend flashmla: no figure is published for {sort} latent "
            f"attention on {gpu.name}"
        )
    rows = [read_data(_FILE)["latent_attention"][one] for one in row[sort]]
    decode, prefill = rows[0], (rows[1] if len(rows) > 1 else None)
    label, source = decode["label"], decode["source"]
    changed = _shares(decode)
    whole = efficiency
    if prefill is not None:
        whole = _with(efficiency, _shares(prefill), prefill["label"], prefill["source"])
    return AttentionBackend(
        name="flashmla",
        efficiency=whole,
        decode=_with(efficiency, changed, label, source),
        label=label,
        source=source,
        accounts=(DECODE_STATE_READS, PREFILL_COMPUTE) if prefill else (DECODE_STATE_READS,),
    )


def _shares(row: Mapping[str, Any]) -> dict[str, float]:
    device = load_gpu(row["device"])
    found = {_COMPUTE: row["flop_per_s"] / device.bf16_flop_per_s}
    if row["bytes_per_s"] is not None:
        found[_MEMORY] = row["bytes_per_s"] / device.hbm_bytes_per_s
    return found


def _with(
    efficiency: Efficiency, changed: Mapping[str, float], label: str, source: str
) -> Efficiency:
    evidence = dict.fromkeys(changed, Evidence(label=label, source=source))
    return replace(efficiency, evidence={**efficiency.evidence, **evidence}, **changed)  # type: ignore[arg-type]
