"""The tables of one device, asked in terms of the operators of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from costmodels.evidence import Source
from costmodels.operator_tables.lookup import LABELS, Labels, Lookup
from costmodels.operator_tables.shapes import (
    LOOKUPS,
    AllReduceTable,
    DecodeAttentionTable,
    ExpertShape,
    GemmTable,
    GroupedGemmTable,
    Heads,
    PrefillAttentionTable,
)
from costmodels.operator_tables.table import Array, OperatorTable
from costmodels.operators import Operator
from costmodels.parallel import RankShard
from sim.errors import ScenarioError

# The operators one call of a grouped_gemm table contains; all its time is posted to the first.
EXPERT_OPERATORS = ("expert_gate_up", "expert_activation", "expert_down", "expert_sum")

# The all-reduces of a step; what gathers logits is none.
_SUMS = ("all_reduce", "qk_norm_sum")

# Formats models are stored in here: a table of another would be taken for one of these.
_WEIGHTS = ("bfloat16", "float16", "fp8", "fp8_block")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTables:
    """At most one lookup of each sort, all of one GPU. None: its operators keep their roofline."""

    gemm: GemmTable | None = None
    gemm_fp8: GemmTable | None = None
    """Matrices multiplied in fp8; a model that has them keeps others (the LM head) in 16 bits."""
    grouped_gemm: GroupedGemmTable | None = None
    prefill_attention: PrefillAttentionTable | None = None
    decode_attention: DecodeAttentionTable | None = None
    all_reduce: AllReduceTable | None = None

    def sources(self) -> list[Source]:
        """Every table with its owner, file and licence."""
        lookups = (
            self.gemm,
            self.gemm_fp8,
            self.grouped_gemm,
            self.prefill_attention,
            self.decode_attention,
            self.all_reduce,
        )
        return [lookup.table.source() for lookup in lookups if lookup]

    def seconds(self, operator: Operator, shard: RankShard) -> tuple[Array, Labels] | None:
        """Seconds of all calls of ``operator`` in a step, launches included, and label: ``[n]``.

        None where no table covers it. The attention operator of `token_operators` is a launch
        only: the tables of attention contain it, so it is 0 here. Raises what lookups raise.
        """
        rows, name = operator.rows, operator.name
        nothing = np.zeros(len(rows)), np.full(len(rows), LABELS[0])
        found: tuple[Array, Labels] | None = None
        gemm = self.gemm_fp8 if operator.is_fp8 else self.gemm
        if operator.kind == "gemm" and gemm:
            inner, outer = weight_shapes(shard)[name]
            found = gemm.seconds(rows, inner, outer)
        elif name in EXPERT_OPERATORS and self.grouped_gemm:
            if _is_fp8(self.grouped_gemm.table) != shard.local.is_fp8:
                return None
            if name != EXPERT_OPERATORS[0]:
                return nothing
            experts = expert_shape(shard)
            flops_per_token = 2 * experts.hidden * 2 * experts.inter * experts.top_k / experts.tp
            found = self.grouped_gemm.seconds(operator.flops / flops_per_token, experts)
        elif name == "attention" and self.decode_attention:
            return nothing
        elif name in _SUMS and self.all_reduce:
            ranks = shard.tensor_parallel_size
            found = self.all_reduce.seconds(operator.comm_bytes * ranks / (2 * (ranks - 1)), ranks)
        if found is None:
            return None
        return operator.calls * found[0], found[1]


def operator_tables(tables: Iterable[OperatorTable]) -> OperatorTables:
    """The bundle of ``tables``.

    Raises `ScenarioError`: two of a sort, two GPUs, a kind or a weight format no operator has.
    """
    lookups: dict[str, Lookup] = {}
    for table in tables:
        weights = table.meta.precision.weights
        if table.meta.kind == "elementwise" or weights not in _WEIGHTS:
            raise ScenarioError(
                f"no operator is priced by a {table.meta.kind} table with {weights} weights; "
                f"weights may be {', '.join(_WEIGHTS)}, and elementwise operators keep a formula"
            )
        is_fp8_gemm = table.meta.kind == "gemm" and _is_fp8(table)
        name = "gemm_fp8" if is_fp8_gemm else table.meta.kind
        if name in lookups:
            raise ScenarioError(f"two {name} tables: give one of each")
        lookups[name] = LOOKUPS[table.meta.kind](table)
    gpus = sorted({lookup.table.meta.gpu for lookup in lookups.values()})
    if len(gpus) > 1:
        raise ScenarioError(f"operator tables of several GPUs ({', '.join(gpus)}): give one")
    return OperatorTables(**lookups)  # type: ignore[arg-type]


def _is_fp8(table: OperatorTable) -> bool:
    return table.meta.precision.activations == "fp8"


def weight_shapes(shard: RankShard) -> dict[str, tuple[int, int]]:
    """Inner and outer size of each linear layer on one rank, by the operator's name."""
    local = shard.local
    hidden, width = local.hidden_size, local.intermediate_size
    return {
        "qkv": (hidden, shard.qkv_size),
        "o": (local.num_attention_heads * local.head_dim, hidden),
        "gate_up": (hidden, (local.ffn_matrices - 1) * width),
        "down": (width, hidden),
        "router": (hidden, local.num_experts),
        "lm_head": (hidden, local.vocab_size),
    }


def expert_shape(shard: RankShard) -> ExpertShape:
    """The experts of one MoE layer of ``shard``."""
    model = shard.model
    return ExpertShape(
        hidden=model.hidden_size,
        inter=model.moe_intermediate_size,
        top_k=model.num_experts_per_tok,
        num_experts=model.num_experts,
        tp=shard.tensor_parallel_size,
    )


def attention_heads(shard: RankShard) -> Heads:
    """The attention heads of one rank, without a window."""
    local = shard.local
    return Heads(
        q_heads=local.num_attention_heads,
        kv_heads=local.num_key_value_heads,
        head_dim=local.head_dim,
    )
