"""The operators of one engine step on one tensor-parallel rank: their FLOPs and bytes.

Each operator is described on whole arrays of batch sizes at once, so a table over all token counts
is a handful of numpy expressions. `roofline` turns the work into seconds.

Formulas: a linear layer is 2 FLOPs a weight and row; attention is 4 heads head_dim FLOPs a
query-key pair; B tokens reach E (1 - (1 - k/E)^B) of E experts under even routing; a ring
all-reduce moves 2 (n - 1) / n of its input over every link.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from costmodels.model_spec import ModelSpec
from costmodels.parallel import RankShard

Array = NDArray[np.float64]
Kind = Literal["gemm", "grouped_gemm", "elementwise", "attention", "sampling", "all_reduce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator, at ``n`` batch sizes. All arrays are float64 ``[n]`` and for one call."""

    name: str
    kind: Kind
    calls: int
    """Calls a step."""
    rows: Array
    """Rows of the left matrix (a grouped GEMM: rows of one expert)."""
    flops: Array
    weight_bytes: Array
    state_bytes: Array
    activation_bytes: Array
    comm_bytes: Array
    launches: int = 1
    """Kernels a call: each has its fixed time."""
    is_fp8: bool = False
    """Whether its matrices are multiplied in fp8."""


def token_operators(shard: RankShard, tokens: Array) -> list[Operator]:
    """The operators that depend on the number of new tokens alone. ``tokens`` is ``[n]``.

    The attention kernel appears with no work: its launch is paid in every step, its work depends on
    contexts (see `attention_operator`).
    """
    model = shard.local
    layers, hidden, elem = model.num_layers, model.hidden_size, model.dtype_bytes
    q_size = model.num_attention_heads * model.head_dim
    kv_size = model.num_key_value_heads * model.head_dim
    operators = [
        _elementwise("embedding", 1, 2 * hidden * elem, tokens),
        # A norm adds the residual first: it reads and writes both.
        _elementwise("norms", 2 * layers + 1, 4 * hidden * elem, tokens),
        _linear("qkv", layers, hidden, shard.qkv_size, model, tokens),
        # Rotary positions in place; then keys and values are copied into their blocks.
        _elementwise("rope_and_kv_write", layers, 2 * (q_size + 3 * kv_size) * elem, tokens),
        _operator("attention", "attention", layers, tokens),
        _linear("o", layers, q_size, hidden, model, tokens),
    ]
    if model.is_fp8:
        # Norms and activations write fp8 at once; what attention puts out is converted apart.
        operators.append(_elementwise("quantise", layers, (elem + 1) * q_size, tokens))
    if model.linear_dtype == "fp8_block":
        # A scale a row and 128 columns: what norms and dense activations put out is converted too.
        wide = 2 * layers * hidden + model.num_dense_layers * model.intermediate_size
        launches = 2 * layers + model.num_dense_layers
        bytes_per_row = (elem + 1) * wide // launches
        operators.append(_elementwise("quantise_blocks", launches, bytes_per_row, tokens))
    if model.qk_norm:
        operators.append(_elementwise("qk_norm", layers, 2 * (q_size + kv_size) * elem, tokens))
    if model.num_dense_layers:
        operators += _dense_ffn(shard, tokens)
    if model.num_moe_layers:
        operators += _moe_ffn(shard, tokens)
    if shard.tensor_parallel_size > 1:
        operators.append(_all_reduce("all_reduce", 2 * layers, hidden * elem, shard, tokens))
        if model.qk_norm_all_heads:
            # The sums of squares of queries and of keys, in 32 bits.
            operators.append(_all_reduce("qk_norm_sum", layers, 8, shard, tokens))
    return operators


def logit_operators(
    shard: RankShard, logits: Array, sampling_bytes_per_logit: float
) -> list[Operator]:
    """The LM head and the sampler over ``logits`` rows. Each rank samples the full vocabulary."""
    model, vocab_size = shard.local, shard.model.vocab_size
    operators = [
        _gemm("lm_head", 1, model.hidden_size, model.vocab_size, model.dtype_bytes, logits),
        _operator(
            "sampling",
            "sampling",
            1,
            logits,
            activation_bytes=sampling_bytes_per_logit * vocab_size * logits,
        ),
    ]
    if shard.tensor_parallel_size > 1:
        row_bytes = vocab_size * model.dtype_bytes
        # A gather moves each part once: half of what an all-reduce does.
        operators.append(_all_reduce("logits_gather", 1, row_bytes / 2, shard, logits))
    return operators


def attention_operator(shard: RankShard, name: str, pairs: Array, kv_tokens: Array) -> Operator:
    """Attention over ``pairs`` query-key pairs that reads ``kv_tokens`` cached tokens."""
    model = shard.local
    return _operator(
        name,
        "attention",
        model.num_layers,
        pairs,
        flops=4.0 * model.num_attention_heads * model.head_dim * pairs,
        state_bytes=shard.kv_bytes_per_token / model.num_layers * kv_tokens,
        launches=0,
    )


def distinct_experts(num_experts: int, top_k: int, tokens: Array) -> Array:
    """Expected experts that ``tokens`` tokens reach, each choosing ``top_k`` evenly: ``[n]``."""
    if top_k == num_experts:
        return np.where(tokens > 0, float(num_experts), 0.0)
    reached: Array = num_experts * -np.expm1(tokens * np.log1p(-top_k / num_experts))
    return reached


def _dense_ffn(shard: RankShard, tokens: Array) -> list[Operator]:
    model = shard.local
    layers, hidden, width = model.num_dense_layers, model.hidden_size, model.intermediate_size
    elem = model.dtype_bytes
    inputs = model.ffn_matrices - 1
    return [
        _linear("gate_up", layers, hidden, inputs * width, model, tokens),
        _elementwise("activation", layers, (inputs + 1) * width * elem, tokens),
        _linear("down", layers, width, hidden, model, tokens),
    ]


def _moe_ffn(shard: RankShard, tokens: Array) -> list[Operator]:
    model = shard.local
    layers, hidden, width = model.num_moe_layers, model.hidden_size, model.moe_intermediate_size
    elem, top_k = model.dtype_bytes, model.num_experts_per_tok
    routed = tokens * top_k
    experts = distinct_experts(model.num_experts, top_k, tokens)
    rows = routed / np.maximum(experts, 1.0)

    def grouped(name: str, inner: int, outer: int) -> Operator:
        return _operator(
            name,
            "grouped_gemm",
            layers,
            rows,
            flops=2.0 * inner * outer * routed,
            weight_bytes=float(inner * outer * model.linear_bytes) * experts,
            activation_bytes=float(inner * model.linear_bytes + outer * elem) * routed,
            is_fp8=model.is_fp8,
        )

    return [
        _gemm("router", layers, hidden, model.num_experts, elem, tokens),
        # Top-k choice and sorting tokens by expert: several small kernels.
        _elementwise("route", layers, 4 * model.num_experts * elem, tokens, launches=3),
        grouped("expert_gate_up", hidden, 2 * width),
        _elementwise("expert_activation", layers, 3 * width * elem, routed),
        grouped("expert_down", width, hidden),
        _elementwise("expert_sum", layers, (top_k + 1) * hidden * elem, tokens),
    ]


def _linear(
    name: str, calls: int, inner: int, outer: int, model: ModelSpec, rows: Array
) -> Operator:
    """A layer's matrix: its input may be quantised, its output never is."""
    weight = _gemm(name, calls, inner, outer, model.linear_bytes, rows)
    out_bytes = float(inner * model.linear_bytes + outer * model.dtype_bytes) * rows
    return replace(weight, activation_bytes=out_bytes, is_fp8=model.is_fp8)


def _gemm(name: str, calls: int, inner: int, outer: int, elem: int, rows: Array) -> Operator:
    return _operator(
        name,
        "gemm",
        calls,
        rows,
        flops=2.0 * inner * outer * rows,
        # No rows, no call: the weights stay unread.
        weight_bytes=np.where(rows > 0, float(inner * outer * elem), 0.0),
        activation_bytes=float((inner + outer) * elem) * rows,
    )


def _elementwise(
    name: str, calls: int, bytes_per_row: int, rows: Array, launches: int = 1
) -> Operator:
    return _operator(
        name,
        "elementwise",
        calls,
        rows,
        activation_bytes=float(bytes_per_row) * rows,
        launches=launches,
    )


def _all_reduce(
    name: str, calls: int, bytes_per_row: float, shard: RankShard, rows: Array
) -> Operator:
    ranks = shard.tensor_parallel_size
    return _operator(
        name, "all_reduce", calls, rows, comm_bytes=2 * (ranks - 1) / ranks * bytes_per_row * rows
    )


def _operator(
    name: str,
    kind: Kind,
    calls: int,
    rows: Array,
    *,
    flops: Array | None = None,
    weight_bytes: Array | None = None,
    state_bytes: Array | None = None,
    activation_bytes: Array | None = None,
    comm_bytes: Array | None = None,
    launches: int = 1,
    is_fp8: bool = False,
) -> Operator:
    none = np.zeros_like(rows)
    return Operator(
        name=name,
        kind=kind,
        calls=calls,
        rows=rows,
        flops=none if flops is None else flops,
        weight_bytes=none if weight_bytes is None else weight_bytes,
        state_bytes=none if state_bytes is None else state_bytes,
        activation_bytes=none if activation_bytes is None else activation_bytes,
        comm_bytes=none if comm_bytes is None else comm_bytes,
        launches=launches,
        is_fp8=is_fp8,
    )
