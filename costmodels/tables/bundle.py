"""The tables of one device, looked up by the operators of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from costmodels.layouts.shard import RankShard
from costmodels.tables.families import EXPERT_OPERATORS, Lack, TableTimes, base_name, family_of
from costmodels.tables.kinds import COLLECTIVES, TableKind
from costmodels.tables.lookup import LABELS, Labels, Lookup, label_codes
from costmodels.tables.shapes import (
    LOOKUPS,
    EmbeddingTable,
    ExchangeTable,
    ExpertShape,
    GemmTable,
    GroupedGemmTable,
    SamplingTable,
)
from costmodels.tables.table import OperatorTable
from costmodels.work import Array, Operator
from sim.errors import ScenarioError
from sim.evidence import Source

_OPS = {
    "norms": "add_rms_norm",
    "activation": "silu_mul",
    "shared_activation": "silu_mul",
    "quantise": "quantise_fp8",
    "quantise_blocks": "quantise_fp8_block",
    "rope": "rotary",
    "global_kv_write": "kv_write",
}
_STAND_INS = {
    "latent_norms": "add_rms_norm",
    "qk_norm": "add_rms_norm",
    "output_gate": "silu_mul",
    "gated_norm": "silu_mul",
    "qkv_activation": "silu_mul",
    "index_rope_and_write": "rotary",
    "rope_and_kv_write": "rotary",
}
_ANY = "residual_add"


def ops_of(operator: Operator) -> tuple[tuple[tuple[str, float], ...], bool]:
    """Return (op, share of the operator's bytes) of each kernel, and whether the ops are its
    own."""
    if operator.parts:
        total = sum(num_bytes for _, num_bytes in operator.parts)
        return tuple((op, num_bytes / total) for op, num_bytes in operator.parts), True
    name = base_name(operator)
    if name in _OPS:
        return ((_OPS[name], 1.0),), True
    return ((_STAND_INS.get(name, _ANY), 1.0),), False


_MULTIPLIED = {
    "fp8_flop_per_s": "fp8",
    "int8_op_per_s": "int8",
    "fp4_flop_per_s": "nvfp4",
    "int4_op_per_s": "int4",
}
# How tokens were spread over experts in our own measurements.
_ROUTINGS = ("balanced", "zipf")
# The kernel that samples if requests do not say how: from the whole vocabulary, by probability.
_SAMPLERS = ("random", "top_p", "greedy")


def multiplied_format(peak: str, dtype: str) -> str:
    """Return the format that a matrix is multiplied in, by the peak it runs at."""
    return _MULTIPLIED.get(peak, dtype)


def expert_shape(shard: RankShard) -> ExpertShape:
    """Return the experts of one MoE layer of ``shard``."""
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
    if lookup.table.meta.variant not in _ROUTINGS:  # another source's spread of tokens
        tokens = routed * experts.ep / experts.top_k
        return *lookup.seconds(tokens, experts), lookup
    reached = operator.weight_bytes / (elements * stored.moved_bytes)
    return *lookup.routed_seconds(routed, reached, experts), lookup


def _routings(tables: OperatorTables, *, is_skewed: bool) -> tuple[str, ...]:
    """Return the routings to look for, best first: the nearest of ours, then those of other
    sources."""
    ours = ("zipf", "balanced") if is_skewed else ("balanced", "zipf")
    others = {lookup.table.meta.variant for lookup in tables.lookups["grouped_gemm"]} - {*ours}
    return *ours, *sorted(others)


def _elementwise(tables: OperatorTables, operator: Operator, shard: RankShard) -> Found:
    """Price each kernel of an operator by its bytes per row; a call has one kernel per launch."""
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
    # The operator counts the bytes that a rank sends; the table has the rank's input.
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


# Tables' formats by models' formats; other group sizes have kernels of their own.
_STORED = {
    "float16": "bfloat16",
    "w8a16": "int8",
    "int4_g128": "int4",
    "nvfp4_w4a16": "nvfp4",
    "kv_int8": "int8",
}
NO_KERNELS: Mapping[TableKind, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTables:
    """Lookups by kind, all of one GPU. Operators of other kinds keep their roofline."""

    lookups: Mapping[TableKind, tuple[Lookup, ...]] = field(default_factory=dict)
    """Lookups of each kind; if several fit an operator, the first serves it."""

    def tables(self, kind: TableKind | None = None) -> list[OperatorTable]:
        """Return all tables, or those of one kind."""
        kinds = self.lookups if kind is None else [kind]
        return [lookup.table for kind in kinds for lookup in self.lookups.get(kind, ())]

    def sources(self) -> list[Source]:
        """Return every table with its owner, file and license."""
        return [table.source() for table in self.tables()]

    def seconds(self, operator: Operator, shard: RankShard) -> TableTimes | None:
        """Return a table's times of an operator; None if no table serves it.

        The attention operator of `token_operators`, which is only a launch, is not looked up here:
        `sequences` prices it together with the attention itself.
        """
        try:
            return self.find(operator, shard)
        except Lack:
            return None

    def find(self, operator: Operator, shard: RankShard) -> TableTimes:
        """Return a table's times of an operator; raises `Lack` with the reason if no table
        serves it."""
        family = family_of(operator)
        if operator.kind == "attention":
            raise Lack("attention is of sequences, not of tokens alone")
        if not self.lookups.get(family):
            raise Lack(f"no {family} table")
        seconds, labels, lookup = FINDERS[family](self, operator, shard)
        return TableTimes(operator.calls * seconds, labels, lookup.table.meta.is_cool)

    def choose(
        self,
        kind: TableKind,
        *,
        activations: str | None = None,
        weights: str | None = None,
        kv: str | None = None,
        variants: tuple[str, ...] = (),
        same: Mapping[str, float] | None = None,
    ) -> Lookup:
        """Return the first lookup of a kind in these formats, of the first of ``variants`` that
        exists, with a curve that shares ``same``. Raises `Lack`."""
        wanted = {"activations": activations, "weights": weights, "kv": kv}
        wanted = {role: _STORED.get(name, name) for role, name in wanted.items() if name}
        found = [
            lookup
            for lookup in self.lookups.get(kind, ())
            if all(
                _STORED.get(name := getattr(lookup.table.meta.precision, role), name) == form
                for role, form in wanted.items()
            )
        ]
        if not found:
            text = ", ".join(f"{role} in {name}" for role, name in wanted.items())
            raise Lack(f"no {kind} table with {text}")
        if variants:
            known = {lookup.table.meta.variant for lookup in found}
            variant = next((name for name in variants if name in known), None)
            if variant is None:
                raise Lack(f"no {kind} table of {variants[0]}, only of {', '.join(sorted(known))}")
            found = [lookup for lookup in found if lookup.table.meta.variant == variant]
        if same is None:
            return found[0]
        reason = ""
        for lookup in found:
            reason = lookup.lack(same)
            if not reason:
                return lookup
        raise Lack(reason)


def operator_tables(
    tables: Iterable[OperatorTable], engine_kernels: Mapping[TableKind, str] = NO_KERNELS
) -> OperatorTables:
    """Return the bundle of ``tables``; of kernels with equal results the fastest stands first.

    ``engine_kernels`` names the kernel that the engine is known to run, by kind; it stands before
    all others.

    Raises `ScenarioError` if a kernel appears twice with equal formats, or the tables are of
    several GPUs.
    """
    lookups: dict[TableKind, list[Lookup]] = {}
    seen: set[tuple[object, ...]] = set()
    for table in tables:
        meta = table.meta
        identity = (meta.kind, meta.kernel, meta.precision, meta.variant)
        if identity in seen:
            raise ScenarioError(f"two {meta.kind} tables of {meta.kernel}: give one of each")
        seen.add(identity)
        lookups.setdefault(meta.kind, []).append(LOOKUPS[meta.kind](table))
    gpus = sorted({one.table.meta.gpu for group in lookups.values() for one in group})
    if len(gpus) > 1:
        raise ScenarioError(f"operator tables of several GPUs ({', '.join(gpus)}): give one")
    ordered = {
        kind: sorted(_by_speed(group), key=lambda one: one.table.meta.kernel != first)
        for kind, group in lookups.items()
        for first in (engine_kernels.get(kind),)
    }
    return OperatorTables(lookups={kind: tuple(group) for kind, group in ordered.items()})


def _by_speed(lookups: list[Lookup]) -> tuple[Lookup, ...]:
    """Sort by speed on the shapes that all share, fastest first; without such shapes, by number
    of points."""
    times = []
    for lookup in lookups:
        columns = [column.tolist() for name, column in lookup.table.columns.items()]
        times.append({row[:-1]: row[-1] for row in zip(*columns, strict=True)})
    shared = set(times[0]).intersection(*times[1:])
    keyed = [
        (sum(np.log(of_one[shape]) for shape in shared), -len(of_one), place)
        for place, of_one in enumerate(times)
    ]
    return tuple(lookups[place] for *_, place in sorted(keyed))
