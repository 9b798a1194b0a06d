"""The tables of one device, asked in terms of the operators of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from costmodels.evidence import Source
from costmodels.layers.gqa import Gqa
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
from costmodels.parallel import RankShard
from costmodels.work import Operator
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
        if operator.weights not in _WEIGHTS:
            return None
        gemm = self.gemm_fp8 if operator.is_fp8 else self.gemm
        if operator.matrix and gemm:
            found = gemm.seconds(rows, *operator.matrix)
        elif name in EXPERT_OPERATORS and self.grouped_gemm:
            if shard.layout.enable_expert_parallel and shard.layout.expert_ranks > 1:
                return None  # measured with a slice of every expert on each rank
            if _is_fp8(self.grouped_gemm.table) != _experts_in_fp8(shard):
                return None
            if name != EXPERT_OPERATORS[0]:
                return nothing
            experts = expert_shape(shard)
            flops_per_token = 2 * experts.hidden * 2 * experts.inter * experts.top_k / experts.tp
            found = self.grouped_gemm.seconds(operator.flops / flops_per_token, experts)
        elif operator.kind == "attention" and self.decode_attention and covers_attention(shard):
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


def _experts_in_fp8(shard: RankShard) -> bool:
    precision = shard.local.precision
    return precision.matrix(precision.experts)[1].peak == "fp8_flop_per_s"


def expert_shape(shard: RankShard) -> ExpertShape:
    """The experts of one MoE layer of ``shard``."""
    experts = shard.model.experts
    assert experts is not None, "asked of an operator of experts alone"
    return ExpertShape(
        hidden=experts.latent or shard.model.hidden_size,
        inter=experts.width,
        top_k=experts.top_k,
        num_experts=experts.num_experts,
        tp=shard.layout.expert_ranks,
    )


def covers_attention(shard: RankShard) -> bool:
    """Whether tables of attention are of this model's: grouped-query, the same in every layer."""
    return [mixer.kind for mixer, _ in shard.local.mixers] == [Gqa.kind]


def attention_heads(shard: RankShard) -> Heads:
    """The attention heads of one rank, without a window (see `covers_attention`)."""
    local = next(mixer for mixer, _ in shard.local.mixers if isinstance(mixer, Gqa))
    return Heads(q_heads=local.heads, kv_heads=local.kv_heads, head_dim=local.head_dim)
