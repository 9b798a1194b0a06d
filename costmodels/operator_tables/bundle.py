"""The tables of one device, asked in terms of the operators of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from costmodels.evidence import Source
from costmodels.operator_tables.families import family_of
from costmodels.operator_tables.finders import FINDERS
from costmodels.operator_tables.kinds import TableKind
from costmodels.operator_tables.lookup import Lookup
from costmodels.operator_tables.served import Lack, Served
from costmodels.operator_tables.shapes import LOOKUPS
from costmodels.operator_tables.table import OperatorTable
from costmodels.parallel import RankShard
from costmodels.work import Operator
from sim.errors import ScenarioError

# Formats of models by those of tables; other group sizes have kernels of their own.
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
    """Where several fit an operator the first serves it."""

    def tables(self, kind: TableKind | None = None) -> list[OperatorTable]:
        """All tables, or those of a kind."""
        kinds = self.lookups if kind is None else [kind]
        return [lookup.table for kind in kinds for lookup in self.lookups.get(kind, ())]

    def sources(self) -> list[Source]:
        """Every table with its owner, file and licence."""
        return [table.source() for table in self.tables()]

    def seconds(self, operator: Operator, shard: RankShard) -> Served | None:
        """What a table says of an operator; None where none serves it.

        The attention operator of `token_operators`, a launch alone, is not asked for here but of
        `sequences`, with the attention itself.
        """
        try:
            return self.find(operator, shard)
        except Lack:
            return None

    def find(self, operator: Operator, shard: RankShard) -> Served:
        """The same; raises `Lack` with the reason where no table serves it."""
        family = family_of(operator)
        if operator.kind == "attention":
            raise Lack("attention is of sequences, not of tokens alone")
        if not self.lookups.get(family):
            raise Lack(f"no {family} table")
        seconds, labels, lookup = FINDERS[family](self, operator, shard)
        return Served(operator.calls * seconds, labels, lookup.table.meta.is_cool)

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
        """The first lookup of a kind in these formats, of the first of ``variants`` there is, with
        a curve that shares ``same``. Raises `Lack`."""
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
    """The bundle of ``tables``; of kernels that do the same the fastest stands first.

    ``engine_kernels``: what the engine is known to run, by kind; that stands before all others.

    Raises `ScenarioError`: the same kernel in the same formats twice, several GPUs.
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
    """Fastest first on the shapes that all share; without such, by the number of points."""
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
