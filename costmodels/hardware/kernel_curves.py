"""Published kernels: attention by generation and length, latent attention, GEMMs, all-to-all.

The points are in ``kernel_curves.yaml``, each with its source. Between and beyond them a kernel's
rate follows most / (1 + half / tokens): short sequences leave tiles and pipelines half empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.datafile import find_name, read_data
from costmodels.hardware.gpus import GpuSpec, load_gpu
from sim.errors import ScenarioError

_FILE = "hardware/kernel_curves.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """A rate that grows with the number of tokens towards ``most``."""

    most: float
    half_tokens: float
    """Tokens at which half of ``most`` is reached."""

    def at(self, tokens: float) -> float:
        """Return the rate at ``tokens`` tokens."""
        return self.most / (1 + self.half_tokens / tokens)


def fit_saturation(points: Mapping[int, float]) -> Saturation:
    """Fit a curve through points (tokens -> rate), by least squares on the times per unit.

    Two points determine it exactly. Raises ValueError for fewer.
    """
    if len(points) < 2:
        raise ValueError("a curve needs two points")
    tokens = np.array(list(points), dtype=float)
    rates = np.array(list(points.values()), dtype=float)
    # 1 / rate = 1 / most + half / (most tokens); weights make relative errors count.
    columns = np.stack([np.ones_like(tokens), 1 / tokens], axis=1) * rates[:, None]
    (inverse, slope), *_ = np.linalg.lstsq(columns, np.ones_like(rates), rcond=None)
    return Saturation(most=float(1 / inverse), half_tokens=float(slope / inverse))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCurve:
    """Share of the 16-bit peak that a generation of attention kernels reaches."""

    name: str
    device: str
    head_dim: int
    points: Mapping[int, float]
    """Tokens of a sequence -> share of the device's peak, as published."""
    source: str

    def share(self, tokens: int, head_dim: int = 128) -> tuple[float, str]:
        """Return the share at a length, and its evidence label.

        The label is ``fitted`` between the published lengths, ``extrapolated`` beyond them and for
        another head_dim: no publication here says how that changes the share.
        """
        inside = min(self.points) <= tokens <= max(self.points) and head_dim == self.head_dim
        share = fit_saturation(self.points).at(tokens)
        return share, "fitted" if inside else "extrapolated"


def attention_curve(generation: str) -> AttentionCurve:
    """Return the curve of a generation: fa2 or fa3. Raises `ScenarioError` for another name."""
    rows = read_data(_FILE)["attention"]
    row = rows[find_name("attention kernel", generation, {name: name for name in rows})]
    peak = getattr(load_gpu(row["device"]), row["peak"])
    points = {tokens: rate * 1e12 / peak for tokens, rate in row["tflop_per_s"].items()}
    return AttentionCurve(
        name=generation,
        device=row["device"],
        head_dim=row["head_dim"],
        points=points,
        source=row["source"],
    )


def attention_shares(generation: str) -> tuple[float, float]:
    """Return the lowest and highest published share of a generation known as a range: fa1, fa2."""
    rows = read_data(_FILE)["attention_shares"]
    row = rows[find_name("attention kernel", generation, {name: name for name in rows})]
    return row["lowest"], row["highest"]


def unfused_attention_s(
    gpu: GpuSpec,
    *,
    tokens: int,
    batch: int,
    heads: int,
    head_dim: int,
    passes: int = 4,
    memory_share: float = 0.8,
    compute_share: float = 0.7,
) -> float:
    """Return the seconds of attention that writes its tokens x tokens scores: two GEMMs and a
    softmax.

    Scores are written, read and written by the softmax, and read: four ``passes`` in 16 bits;
    separate kernels for scale, mask and dropout add six. Nothing is skipped for a causal mask. This
    is the baseline that FlashAttention replaced (arXiv 2205.14135).
    """
    scores = float(batch * heads * tokens**2)
    in_and_out = 4.0 * batch * tokens * heads * head_dim
    memory_s = 2 * (passes * scores + in_and_out) / (gpu.hbm_bytes_per_s * memory_share)
    compute_s = 4 * scores * head_dim / (gpu.bf16_flop_per_s * compute_share)
    return max(memory_s, compute_s)


def fused_attention_s(
    gpu: GpuSpec, *, tokens: int, batch: int, heads: int, head_dim: int, share: float
) -> float:
    """Return the seconds of attention with its scores on chip, at a share of the 16-bit peak,
    without a mask."""
    return 4.0 * batch * heads * tokens**2 * head_dim / (gpu.bf16_flop_per_s * share)


def low_latency_all_to_all_s(ranks: int, num_bytes: float, fixed_s: float) -> float:
    """Return the seconds of one DeepEP low-latency all-to-all: fixed time, and bytes on the slower
    way.

    ``num_bytes`` leave each rank, evenly to all ``ranks``: those for its own node over NVLink, the
    others over the network card, both at once. Bandwidths are the published ones. Raises
    `ScenarioError` for fewer than two ranks.
    """
    if ranks < 2:
        raise ScenarioError(f"an all-to-all needs at least 2 ranks, not {ranks}")
    row = read_data(_FILE)["deepep_low_latency"]
    in_node = min(row["node_ranks"], ranks)
    near, far = (in_node - 1) / ranks, (ranks - in_node) / ranks
    near_s = num_bytes * near / row["fabric_bytes_per_s"]
    far_s = num_bytes * far / row["network_bytes_per_s"]
    return float(fixed_s + max(near_s, far_s))


def deepep_points() -> list[tuple[str, int, float, float]]:
    """Return DeepEP's table: (dispatch or combine, ranks, bytes that leave a rank, seconds)."""
    row = read_data(_FILE)["deepep_low_latency"]
    elements = row["tokens"] * row["top_k"] * row["hidden"]
    return [
        (way, ranks, float(elements * row[f"{way}_bytes"]), micro_s * 1e-6)
        for way in ("dispatch", "combine")
        for ranks, micro_s in row[f"{way}_us"].items()
    ]


def deepep_fixed_s() -> float:
    """Return the fixed time of DeepEP's low-latency kernels, from the first point of the table
    alone."""
    _, ranks, num_bytes, seconds = deepep_points()[0]
    return seconds - low_latency_all_to_all_s(ranks, num_bytes, 0.0)


def core_instructions_per_s(gpu: GpuSpec) -> float | None:
    """Return the instructions per second beside the tensor cores; None if not known."""
    found: float | None = read_data(_FILE)["core_instructions_per_s"].get(gpu.name)
    return found
