"""The roofline's bound on a shape: max(FLOPs / peak, bytes / bandwidth), and nothing for launches.

Tables are interpolated in the share of this bound that was reached. Formulas as in
`costmodels.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from costmodels.gpu_spec import GpuSpec
from costmodels.operator_tables.kinds import FORMAT_BYTES, PEAKS, Precision, TableKind
from sim.errors import ScenarioError

Array = NDArray[np.float64]
Columns = Mapping[str, Array]

_RESULT_BYTES = 2.0


def ideal_seconds(kind: TableKind, shape: Columns, gpu: GpuSpec, precision: Precision) -> Array:
    """Seconds of each shape at the datasheet's peaks: ``[n]``.

    ``shape`` has the shape columns of ``kind`` as float64 ``[n]``. Raises `ScenarioError` if the
    device has no peak for the precision, or no link.
    """
    if kind == "all_reduce":
        if gpu.peer_bytes_per_s is None:
            raise ScenarioError(f"{gpu.name} has no known device-to-device link")
        share = 2 * (shape["ranks"] - 1) / shape["ranks"]
        return share * shape["bytes"] / gpu.peer_bytes_per_s
    if kind == "gemm":
        flops, num_bytes = _gemm(shape, precision)
    elif kind == "grouped_gemm":
        flops, num_bytes = _grouped_gemm(shape, precision)
    elif kind == "elementwise":
        flops, num_bytes = np.zeros(1), shape["rows"] * shape["bytes_per_row"]
    else:
        flops, num_bytes = attention_work(shape, precision, *attention_sums(kind, shape))
    return roofline_seconds(flops, num_bytes, gpu, precision)


def roofline_seconds(flops: Array, num_bytes: Array, gpu: GpuSpec, precision: Precision) -> Array:
    """max(FLOPs / peak, bytes / bandwidth)."""
    peak = cast("float | None", getattr(gpu, PEAKS[precision.activations]))
    if peak is None:
        raise ScenarioError(
            f"{gpu.name} has no {PEAKS[precision.activations]} in gpus.yaml, which a table with "
            f"{precision.activations} activations needs"
        )
    return np.maximum(flops / peak, num_bytes / gpu.hbm_bytes_per_s)


def attention_work(
    shape: Columns, precision: Precision, pairs: Array, kv_tokens: Array, new_tokens: Array
) -> tuple[Array, Array]:
    """FLOPs and bytes of attention over sums: query-key pairs, KV tokens read, queries."""
    q_size = shape["q_heads"] * shape["head_dim"]
    kv_size = shape["kv_heads"] * shape["head_dim"]
    query_bytes = (FORMAT_BYTES[precision.activations] + _RESULT_BYTES) * q_size * new_tokens
    return 4 * q_size * pairs, 2 * FORMAT_BYTES[precision.kv] * kv_size * kv_tokens + query_bytes


def attention_sums(kind: TableKind, shape: Columns) -> tuple[Array, Array, Array]:
    """Query-key pairs, KV tokens and queries of a batch of equal sequences."""
    seqs, window = shape["seqs"], shape["window"]
    if kind == "decode_attention":
        seen = _clipped(shape["context_tokens"], window)
        return seqs * seen, seqs * seen, seqs
    new, prefix = shape["new_tokens"], shape["prefix_tokens"]
    pairs = _causal_pairs(prefix + new, window) - _causal_pairs(prefix, window)
    # With a window, what lies before the first query's is not read.
    kv_tokens = np.where(window > 0, np.minimum(prefix + new, window + new), prefix + new)
    return seqs * pairs, seqs * kv_tokens, seqs * new


def _causal_pairs(tokens: Array, window: Array) -> Array:
    """Pairs of ``tokens`` tokens, each looking at itself and those before, within the window."""
    full = _clipped(tokens, window)
    return full * (full + 1) / 2 + (tokens - full) * window


def _clipped(tokens: Array, window: Array) -> Array:
    return np.where(window > 0, np.minimum(tokens, window), tokens)


def _gemm(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    m, n, k = shape["m"], shape["n"], shape["k"]
    row_bytes = FORMAT_BYTES[precision.activations] * k + _RESULT_BYTES * n
    return 2 * m * n * k, FORMAT_BYTES[precision.weights] * n * k + row_bytes * m


def _grouped_gemm(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    hidden, inter = shape["hidden"], shape["inter"] / shape["tp"]
    routed = shape["tokens"] * shape["top_k"] / shape["ep"]
    weights = 3 * hidden * inter
    share = np.minimum(shape["top_k"] / shape["num_experts"], 1 - 1e-12)
    experts = shape["num_experts"] * -np.expm1(shape["tokens"] * np.log1p(-share))
    weight_bytes = FORMAT_BYTES[precision.weights] * weights * experts / shape["ep"]
    return 2 * weights * routed, weight_bytes + _RESULT_BYTES * (2 * hidden + 3 * inter) * routed
