"""The roofline's bound on a shape: max(FLOPs / peak, bytes / bandwidth), without launch time.

Tables are interpolated in the share of this bound that was reached. Formulas are as in
`costmodels.operators.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import cast

import numpy as np

from costmodels.hardware.gpus import GpuSpec
from costmodels.tables.kinds import COLLECTIVES, FORMAT_BYTES, PEAKS, Precision, TableKind
from costmodels.work import Array
from sim.errors import ScenarioError

Columns = Mapping[str, Array]

_RESULT_BYTES = 2.0
_LAUNCH_S = 1e-6
_HOST_COPIES = ("h2d", "d2h")


def ideal_seconds(
    kind: TableKind, shape: Columns, gpu: GpuSpec, precision: Precision, variant: str = ""
) -> Array:
    """Return the seconds of each shape at the datasheet's peaks: ``[n]``; a microsecond per launch.

    ``shape`` has the shape columns of ``kind`` as float64 ``[n]``, ``variant`` is the table's.
    Raises `ScenarioError` if the device has no peak for the precision, or no link.
    """
    if kind in COLLECTIVES:
        if gpu.peer_bytes_per_s is None:
            raise ScenarioError(f"{gpu.name} has no known device-to-device link")
        return link_bytes(kind, shape) / gpu.peer_bytes_per_s
    if kind == "launch":
        return _LAUNCH_S * shape["kernels"]
    if kind == "copy" and variant in _HOST_COPIES:
        if gpu.host_link_bytes_per_s is None:
            raise ScenarioError(f"{gpu.name} has no known link to its host")
        return shape["bytes"] / gpu.host_link_bytes_per_s
    return roofline_seconds(*work(kind, shape, precision, variant), gpu, precision)


def link_bytes(kind: TableKind, shape: Columns) -> Array:
    """Return the bytes that every rank must send for an exchange with ``bytes`` of input:
    ``[n]``."""
    ranks = shape["ranks"]
    share = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "all_gather": ranks - 1,
        "reduce_scatter": (ranks - 1) / ranks,
        "all_to_all": (ranks - 1) / ranks,
        "send_recv": np.ones_like(ranks),
    }
    return share[kind] * shape["bytes"]


def work(
    kind: TableKind, shape: Columns, precision: Precision, variant: str = ""
) -> tuple[Array, Array]:
    """Return the FLOPs and the fewest bytes of device memory of each shape, for kinds without a
    link."""
    if kind in ("prefill_attention", "decode_attention"):
        return attention_work(shape, precision, *attention_sums(kind, shape))
    if kind == "grouped_gemm":
        routed = shape["tokens"] * shape["top_k"] / shape["ep"]
        return experts_work(shape, precision, routed, experts_reached(shape, variant))
    return _WORK[kind](shape, precision)


def roofline_seconds(flops: Array, num_bytes: Array, gpu: GpuSpec, precision: Precision) -> Array:
    """Return max(FLOPs / peak, bytes / bandwidth). Raises `ScenarioError` if the peak is not
    known."""
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
    """Return FLOPs and bytes of attention over sums: query-key pairs, KV tokens read, queries."""
    q_size = shape["q_heads"] * shape["head_dim"]
    kv_size = shape["kv_heads"] * shape["head_dim"]
    query_bytes = (FORMAT_BYTES[precision.activations] + _RESULT_BYTES) * q_size * new_tokens
    return 4 * q_size * pairs, 2 * FORMAT_BYTES[precision.kv] * kv_size * kv_tokens + query_bytes


def attention_sums(kind: TableKind, shape: Columns) -> tuple[Array, Array, Array]:
    """Return query-key pairs, KV tokens and queries of a batch of equal sequences."""
    seqs, window = shape["seqs"], shape["window"]
    if kind == "decode_attention":
        seen = _clipped(shape["context_tokens"], window)
        return seqs * seen, seqs * seen, seqs
    new, prefix = shape["new_tokens"], shape["prefix_tokens"]
    pairs = _causal_pairs(prefix + new, window) - _causal_pairs(prefix, window)
    # With a window, tokens before the first query's window are not read.
    kv_tokens = np.where(window > 0, np.minimum(prefix + new, window + new), prefix + new)
    return seqs * pairs, seqs * kv_tokens, seqs * new


def _causal_pairs(tokens: Array, window: Array) -> Array:
    """Return the pairs of ``tokens`` tokens, each attending to itself and earlier ones within
    the window."""
    full = _clipped(tokens, window)
    return full * (full + 1) / 2 + (tokens - full) * window


def _clipped(tokens: Array, window: Array) -> Array:
    return np.where(window > 0, np.minimum(tokens, window), tokens)


def _gemm(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    m, n, k = shape["m"], shape["n"], shape["k"]
    row_bytes = FORMAT_BYTES[precision.activations] * k + _RESULT_BYTES * n
    return 2 * m * n * k, FORMAT_BYTES[precision.weights] * n * k + row_bytes * m


def experts_work(
    shape: Columns, precision: Precision, routed: Array, reached: Array
) -> tuple[Array, Array]:
    """Return FLOPs and bytes of one rank's experts; ``reached`` of them get ``routed`` rows
    together."""
    hidden, inter = shape["hidden"], shape["inter"] / shape["tp"]
    weights = 3 * hidden * inter
    weight_bytes = FORMAT_BYTES[precision.weights] * weights * reached
    return 2 * weights * routed, weight_bytes + _RESULT_BYTES * (2 * hidden + 3 * inter) * routed


def experts_reached(shape: Columns, routing: str) -> Array:
    """Return the number of one rank's experts that get any of the tokens.

    ``balanced``: assignments are dealt out like cards, so each goes to another expert while there
    are any; ``zipf``: the n-th most popular in proportion to 1 / n; else each token chooses evenly.
    """
    tokens, top_k, experts = shape["tokens"], shape["top_k"], shape["num_experts"]
    if routing == "balanced":
        return np.minimum(tokens * top_k, experts) / shape["ep"]
    if routing == "zipf":
        found = np.empty_like(tokens)
        for row, (count, chosen, of) in enumerate(zip(tokens, top_k, experts, strict=True)):
            chances = _zipf_chances(int(of), int(chosen))
            found[row] = -np.expm1(count * np.log1p(-np.minimum(chances, 1 - 1e-12))).sum()
        return found / shape["ep"]
    share = np.minimum(top_k / experts, 1 - 1e-12)
    reached: Array = experts * -np.expm1(tokens * np.log1p(-share)) / shape["ep"]
    return reached


@lru_cache(maxsize=64)
def _zipf_chances(num_experts: int, top_k: int) -> Array:
    from costmodels.models.expert_load import ExpertLoad, expert_chances

    return expert_chances(num_experts, top_k, ExpertLoad(skew=1.0))


def _mla_decode(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    latent = shape["kv_lora_rank"] + shape["rope_dim"]
    tokens = shape["seqs"] * shape["context_tokens"]
    per_query = shape["heads"] * (latent + shape["kv_lora_rank"])
    # Queries are read; the results written have the size of the values.
    num_bytes = FORMAT_BYTES[precision.kv] * latent * tokens
    return 2 * per_query * tokens, num_bytes + _RESULT_BYTES * per_query * shape["seqs"]


def _delta_rule(products: int, chunk: int) -> Callable[[Columns, Precision], tuple[Array, Array]]:
    """Return the work of a delta-rule kernel, as in `costmodels.models.layers.parts`:
    ``products`` FLOPs per element of the state and token, and the products within a chunk."""

    def found(shape: Columns, precision: Precision) -> tuple[Array, Array]:
        k_dim, v_dim, heads = shape["head_k_dim"], shape["head_v_dim"], shape["heads"]
        tokens = shape["seqs"] * shape["tokens"]
        flops = heads * tokens * (products * k_dim * v_dim + chunk * (3 * k_dim + 2 * v_dim))
        states = 2 * FORMAT_BYTES[precision.kv] * heads * k_dim * v_dim * shape["seqs"]
        return flops, states + _RESULT_BYTES * heads * (2 * k_dim + 2 * v_dim) * tokens

    return found


def _elementwise(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    num_bytes = shape["rows"] * shape["bytes_per_row"]
    return np.zeros_like(num_bytes), num_bytes


def _embedding(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    num_bytes = 2 * FORMAT_BYTES[precision.activations] * shape["rows"] * shape["width"]
    return np.zeros_like(num_bytes), num_bytes


def _sampling(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    num_bytes = FORMAT_BYTES[precision.activations] * shape["rows"] * shape["vocab"]
    return np.zeros_like(num_bytes), num_bytes


def _copy(shape: Columns, precision: Precision) -> tuple[Array, Array]:
    num_bytes = 2 * shape["bytes"]  # read and written
    return np.zeros_like(num_bytes), num_bytes


_WORK: dict[TableKind, Callable[[Columns, Precision], tuple[Array, Array]]] = {
    "gemm": _gemm,
    "mla_decode": _mla_decode,
    "kda_chunk": _delta_rule(6, 64),
    "kda_recurrent": _delta_rule(7, 0),
    "gdn_chunk": _delta_rule(6, 64),
    "gdn_recurrent": _delta_rule(7, 0),
    "elementwise": _elementwise,
    "embedding": _embedding,
    "sampling": _sampling,
    "copy": _copy,
}
