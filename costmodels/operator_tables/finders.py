"""The table and the shape of each operator of a step, by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from costmodels.operator_tables.elementwise_ops import ops_of
from costmodels.operator_tables.families import EXPERT_OPERATORS, base_name, family_of
from costmodels.operator_tables.kinds import COLLECTIVES, TableKind
from costmodels.operator_tables.lookup import LABELS, Labels, Lookup, label_codes
from costmodels.operator_tables.served import Lack
from costmodels.operator_tables.shapes import (
    EmbeddingTable,
    ExchangeTable,
    ExpertShape,
    GemmTable,
    GroupedGemmTable,
    SamplingTable,
)
from costmodels.operator_tables.table import Array
from costmodels.parallel import RankShard
from costmodels.work import Operator

if TYPE_CHECKING:
    from costmodels.operator_tables.bundle import OperatorTables

_MULTIPLIED = {
    "fp8_flop_per_s": "fp8",
    "int8_op_per_s": "int8",
    "fp4_flop_per_s": "nvfp4",
    "int4_op_per_s": "int4",
}
# How tokens were spread over experts in our own measurements.
_ROUTINGS = ("balanced", "zipf")
# The kernel that samples where requests say nothing: of all the vocabulary, by probability.
_SAMPLERS = ("random", "top_p", "greedy")


def multiplied_format(peak: str, dtype: str) -> str:
    """The format that a matrix is multiplied in, by the peak it runs at."""
    return _MULTIPLIED.get(peak, dtype)


def expert_shape(shard: RankShard) -> ExpertShape:
    """The experts of one MoE layer of ``shard``."""
    experts = shard.model.experts
    assert experts is not None, "asked of an operator of experts alone"
    layout = shard.layout
    ranks = layout.expert_ranks
    return ExpertShape(
        hidden=experts.latent or shard.model.hidden_size,
        inter=experts.width,
        top_k=experts.top_k,
        num_experts=experts.num_experts,
        tp=1 if layout.enable_expert_parallel else ranks,
        ep=ranks if layout.enable_expert_parallel else 1,
    )


Found = tuple[Array, Labels, Lookup]


def _gemm(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    assert operator.matrix is not None, "every GEMM says its matrix"
    activations = multiplied_format(operator.peak, shard.local.precision.dtype)
    lookup = tables.choose("gemm", activations=activations, weights=operator.weights)
    assert isinstance(lookup, GemmTable)
    return *lookup.seconds(operator.rows, *operator.matrix), lookup


def _experts(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    precision = shard.local.precision
    stored, multiplied = precision.matrix(precision.experts)
    load = shard.layout.expert_load
    lookup = tables.choose(
        "grouped_gemm",
        activations=multiplied_format(multiplied.peak, precision.dtype),
        weights=stored.name,
        variants=_routings(tables, is_skewed=bool(load.skew or load.loads)),
    )
    assert isinstance(lookup, GroupedGemmTable)
    experts = expert_shape(shard)
    if experts.ep > 1 and lookup.table.columns["ep"].max() == 1:
        raise Lack("measured with a slice of every expert on each rank, not whole experts")
    if base_name(operator) != EXPERT_OPERATORS[0]:
        count = len(operator.rows)
        return np.zeros(count), np.full(count, LABELS[0]), lookup
    elements = 2 * experts.hidden * experts.inter / experts.tp  # of gate and up
    routed = operator.flops / (2 * elements)
    if lookup.table.meta.variant not in _ROUTINGS:  # another's idea of how tokens are spread
        tokens = routed * experts.ep / experts.top_k
        return *lookup.seconds(tokens, experts), lookup
    reached = operator.weight_bytes / (elements * stored.moved_bytes)
    return *lookup.routed_seconds(routed, reached, experts), lookup


def _routings(tables: OperatorTables, *, is_skewed: bool) -> tuple[str, ...]:
    """Those to look for, best first: the nearest of ours, or what another source has."""
    ours = ("zipf", "balanced") if is_skewed else ("balanced", "zipf")
    others = {lookup.table.meta.variant for lookup in tables.lookups["grouped_gemm"]} - {*ours}
    return *ours, *sorted(others)


def _elementwise(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    """Each of its kernels by its bytes a row; a call of several launches is as many kernels."""
    ops, is_own = ops_of(operator)
    rows, launches = operator.rows, operator.launches
    a_row = operator.activation_bytes.sum() / max(operator.rows.sum(), 1e-9) / launches
    seconds, codes = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
    for op, share in ops:
        lookup = tables.choose("elementwise", variants=(op,))
        curve = {"bytes_per_row": max(share * float(a_row), 1e-9)}
        found, labels = lookup.shape_seconds(curve, {"rows": rows})
        seconds += launches * found
        codes = np.maximum(codes, label_codes(labels))
    if not is_own:
        codes = np.full(len(rows), len(LABELS) - 1)
    return seconds, LABELS[codes], lookup


def _embedding(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    lookup = tables.choose("embedding", activations=shard.local.precision.dtype)
    assert isinstance(lookup, EmbeddingTable)
    local = shard.local
    return *lookup.seconds(operator.rows, local.hidden_size, local.vocab_size), lookup


def _sampling(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    lookup = tables.choose("sampling", variants=_SAMPLERS)
    assert isinstance(lookup, SamplingTable)
    return *lookup.seconds(operator.rows, shard.model.vocab_size), lookup


def _exchange(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    family = family_of(operator)
    exchange = operator.exchange
    ranks = exchange.ranks if exchange else shard.tensor_parallel_size
    if exchange and exchange.in_node < ranks:
        raise Lack(f"{operator.name} crosses nodes: measured within one")
    if family == "all_to_all":
        raise Lack(f"{operator.name} is DeepEP's, another kernel than the library's all-to-all")
    lookup = tables.choose(family, same={"ranks": ranks})
    assert isinstance(lookup, ExchangeTable)
    # What the operator counts is what a rank sends; the table has the rank's input.
    input_share = {
        "all_reduce": ranks / (2 * (ranks - 1)),
        "all_gather": 1 / (ranks - 1),
        "reduce_scatter": ranks / (ranks - 1),
        "send_recv": 1.0,
    }
    return *lookup.seconds(operator.comm_bytes * input_share[family], ranks), lookup


FINDERS: dict[TableKind, Callable[[OperatorTables, Operator, RankShard], Found]] = {
    "gemm": _gemm,
    "grouped_gemm": _experts,
    "elementwise": _elementwise,
    "embedding": _embedding,
    "sampling": _sampling,
    **dict.fromkeys(COLLECTIVES, _exchange),
}
