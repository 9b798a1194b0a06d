"""Published formulas of kernels: attention with and without its scores, DeepEP, GEMM bounds."""

from __future__ import annotations

from costmodels.hardware.gemm_paths import PrecisionPath, gemm_seconds
from costmodels.hardware.gpus import GpuSpec
from sim.errors import ScenarioError

# DeepEP's low-latency kernels on H800-SXM (docs/legacy.md): 128 tokens a rank, top 8 of hidden
# 7168; 160 GB/s of NVLink usable, CX7 of 400 Gb/s a rank. Microseconds by expert-parallel ranks.
_ELEMENTS = 128 * 8 * 7168
_ELEMENT_BYTES = {"dispatch": 1, "combine": 2}
_NODE_RANKS = 8
_FABRIC_BYTES_PER_S = 160.0e9
_NETWORK_BYTES_PER_S = 50.0e9
_DEEPEP_US = {
    "dispatch": {8: 77, 16: 118, 32: 155, 64: 173, 128: 192, 256: 194},
    "combine": {8: 114, 16: 195, 32: 273, 64: 314, 128: 369, 256: 360},
}


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
    """Attention that writes its scores: two GEMMs and a softmax over tokens x tokens matrices.

    Scores are written, read and written by the softmax, and read: four ``passes`` in 16 bits; a
    kernel each for scale, mask and dropout adds six. Nothing is skipped for a causal mask. The
    baseline that FlashAttention replaced (arXiv 2205.14135).
    """
    scores = float(batch * heads * tokens**2)
    in_and_out = 4.0 * batch * tokens * heads * head_dim
    memory_s = 2 * (passes * scores + in_and_out) / (gpu.hbm_bytes_per_s * memory_share)
    compute_s = 4 * scores * head_dim / (gpu.bf16_flop_per_s * compute_share)
    return max(memory_s, compute_s)


def fused_attention_s(
    gpu: GpuSpec, *, tokens: int, batch: int, heads: int, head_dim: int, share: float
) -> float:
    """Attention that keeps its scores on chip, at a share of the 16-bit peak, without a mask."""
    return 4.0 * batch * heads * tokens**2 * head_dim / (gpu.bf16_flop_per_s * share)


def low_latency_all_to_all_s(ranks: int, num_bytes: float, fixed_s: float) -> float:
    """One all-to-all of DeepEP's low-latency kernels: fixed time, and bytes on the slower way.

    ``num_bytes`` leave each rank, evenly to all ``ranks``: those for the own node over NVLink, the
    others over the network card, both at once. Bandwidths are the published ones.
    Raises `ScenarioError` for fewer than two ranks.
    """
    if ranks < 2:
        raise ScenarioError(f"an all-to-all needs at least 2 ranks, not {ranks}")
    in_node = min(_NODE_RANKS, ranks)
    near, far = (in_node - 1) / ranks, (ranks - in_node) / ranks
    near_s = num_bytes * near / _FABRIC_BYTES_PER_S
    far_s = num_bytes * far / _NETWORK_BYTES_PER_S
    return float(fixed_s + max(near_s, far_s))


def deepep_points() -> list[tuple[str, int, float, float]]:
    """DeepEP's table: (dispatch or combine, ranks, bytes that leave a rank, seconds)."""
    return [
        (way, ranks, float(_ELEMENTS * _ELEMENT_BYTES[way]), micro_s * 1e-6)
        for way in _DEEPEP_US
        for ranks, micro_s in _DEEPEP_US[way].items()
    ]


def deepep_fixed_s() -> float:
    """The fixed time of DeepEP's low-latency kernels, from the first point of the table alone."""
    _, ranks, num_bytes, seconds = deepep_points()[0]
    return seconds - low_latency_all_to_all_s(ranks, num_bytes, 0.0)


def dequantisation_share(path: PrecisionPath, gpu: GpuSpec, rows: int) -> float:
    """Seconds of dequantising over those of multiplying, in a GEMM of ``rows`` x 8192 x 8192."""
    found = gemm_seconds(path, gpu, rows, 8192, 8192)
    return found.dequantize / found.multiply


def compute_bound_rows(peak_per_s: float, weight_bytes: float, bytes_per_s: float) -> float:
    """Rows above which multiplying takes longer than reading the weights: P w / (2 BW)."""
    return peak_per_s * weight_bytes / (2 * bytes_per_s)
