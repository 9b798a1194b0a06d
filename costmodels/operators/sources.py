"""Which source serves which operator: fitted constants, the datasheet, or measured tables.

Every family of operators is served by exactly the source named for it. If a source of tables lacks
some operator of the model, a family that was named is refused; one that falls under the default
keeps the fitted roofline, with a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.hardware.efficiency import Efficiency, load_efficiency
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.exchanges import stage_send
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard, shard
from costmodels.models.spec import ModelSpec
from costmodels.operators.operators import group_operators, logit_operators, token_operators
from costmodels.tables.bundle import NO_KERNELS, OperatorTables, operator_tables
from costmodels.tables.families import (
    ATTENTION,
    PRICED,
    Lack,
    decode_family,
    family_of,
    prefill_family,
)
from costmodels.tables.kinds import TableKind
from costmodels.tables.sequences import find_decode, find_prefill
from costmodels.tables.table import OperatorTable
from sim.errors import ScenarioError
from sim.paths import is_folder

FITTED, DATASHEET, AIC, OURS = "fitted", "datasheet", "aic", "ours"
DEFAULT = "default"

Choice = str | Mapping[str, str]
"""One source for all operators, or one per family, with a ``default``."""


def _is_path(source: str) -> bool:
    """Return whether a source is a folder or files of the user's rather than a name."""
    return source not in (FITTED, DATASHEET, AIC, OURS) and not source.startswith(f"{AIC}:")


def parsed(choice: Choice) -> tuple[str, dict[str, str]]:
    """Return the default source, and those of families by name.

    Raises `ScenarioError` for an unknown family, and for what cannot be a source.
    """
    named = {DEFAULT: choice} if isinstance(choice, str) else dict(choice)
    default = named.pop(DEFAULT, FITTED)
    for family in named:
        if family not in PRICED:
            raise ScenarioError(
                f"engine.operators: {family!r} is no family of a step's operators; they are "
                f"{DEFAULT}, {', '.join(PRICED)}"
            )
    for source in (default, *named.values()):
        _check_source(source)
    return default, named


def _check_source(source: str) -> None:
    if not _is_path(source) or is_folder(Path(source)):
        return
    if not all(part.strip().endswith(".parquet") for part in source.split(",")):
        raise ScenarioError(
            f"operators {source!r} is neither {FITTED}, {DATASHEET}, {OURS} nor {AIC}, nor a "
            "folder of tables, nor table files (.parquet, separated by commas)"
        )


_SIZES = np.array([1.0, 64.0])
_MULTIPLY: tuple[TableKind, ...] = (
    "gemm",
    "grouped_gemm",
    "prefill_attention",
    "decode_attention",
    "mla_decode",
)
# The constants of each family. Other families use those of attention and elementwise kernels.
_CONSTANTS: dict[TableKind, tuple[str, ...]] = {
    "gemm": ("gemm_", "fp8_", "tile_rows"),
    "grouped_gemm": ("grouped_",),
    "prefill_attention": ("attention_compute", "attention_query_tile_tokens"),
    "decode_attention": (
        "attention_memory",
        "attention_tile_tokens",
        "attention_imbalance",
        "attention_fixed_s",
    ),
    "elementwise": ("elementwise_",),
    "sampling": ("sampling_",),
    "all_reduce": ("all_reduce_",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySource:
    """The source that serves one family of a model's operators."""

    family: TableKind
    source: str
    """``fitted``, ``datasheet``, or the source of the tables as the scenario names it."""
    tables: tuple[OperatorTable, ...] = ()
    note: str = ""
    """Reason why it is not the source that was asked for; empty if it is."""

    @property
    def content_hash(self) -> str:
        """Hash of its tables together; empty without tables."""
        hashes = [table.content_hash for table in self.tables]
        if len(hashes) < 2:
            return "".join(hashes)
        return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return the source as plain values for reports."""
        return {
            "family": self.family,
            "source": self.source,
            "hash": self.content_hash,
            "tables": [
                {
                    "kernel": table.meta.kernel,
                    "engine": f"{table.meta.engine} {table.meta.engine_version}",
                    "hash": table.content_hash,
                }
                for table in self.tables
            ],
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSources:
    """The constants and tables that price each family of a model's operators on a device."""

    efficiency: Efficiency
    constants: Mapping[TableKind, Efficiency]
    """Constants of single families, used in place of ``efficiency``."""
    tables: OperatorTables | None
    families: tuple[FamilySource, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Families not served by the source that was asked for, in one sentence per reason."""
        by_reason: dict[str, list[str]] = {}
        for one in self.families:
            if one.note:
                by_reason.setdefault(one.note, []).append(one.family)
        return tuple(
            f"{', '.join(families)} {'keep' if len(families) > 1 else 'keeps'} the fitted "
            f"roofline: {reason}"
            for reason, families in by_reason.items()
        )

    @property
    def address(self) -> str:
        """SHA-256 of which source serves which family, and of every timing in it."""
        # Where a folder lies says nothing about its contents.
        facts = [
            (one.family, one.content_hash or one.source, one.note != "") for one in self.families
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def load_operators(
    choice: Choice,
    gpu: GpuSpec,
    model: ModelSpec,
    fitted: Efficiency,
    layout: Layout | int = 1,
    engine_kernels: Mapping[TableKind, str] = NO_KERNELS,
) -> OperatorSources:
    """Return the efficiency constants and tables of a choice.

    ``fitted``: the GPU's fitted constants alone (generic ones if there are none). ``datasheet``:
    generic constants alone. ``ours``: our own tables of this GPU; ``aic`` or ``aic:vllm-0.24``:
    AIConfigurator's. Otherwise a folder of tables that `fleetcast calibrate import` wrote, or files
    separated by commas. ``engine_kernels``: see `operator_tables`. Raises `ScenarioError` if there
    is no such source, it does not fit the GPU, or it has no tables of a family that was named.
    """
    default, named = parsed(choice)
    rank = shard(model, layout)
    datasheet = load_efficiency(gpu, generic_only=True)
    readers: dict[str, Reader] = {}
    served: list[FamilySource] = []
    lookups: dict[TableKind, Any] = {}
    needs = _needs(rank)
    for family, needed in needs.items():
        source = named.get(family, default)
        if source in (FITTED, DATASHEET):
            served.append(FamilySource(family=family, source=source))
            continue
        if source not in readers:
            wanted = [other for other in needs if named.get(other, default) == source]
            readers[source] = _reader(source, gpu, model, wanted)
        of_family: list[OperatorTable] = []
        try:
            of_family = readers[source](family)
            reason = ""
        except Lack as lack:
            reason = str(lack)
        tables = operator_tables(of_family, engine_kernels)
        reason = reason or _lack(tables, family, rank, needed)
        if reason and family in named:
            raise ScenarioError(f"engine.operators.{family}: {source}: {reason}")
        if reason:
            is_files = source.endswith(".parquet") and not of_family
            note = "" if is_files else f"{source}: {reason}"
            served.append(FamilySource(family=family, source=FITTED, note=note))
            continue
        lookups |= tables.lookups
        served.append(FamilySource(family=family, source=source, tables=tuple(of_family)))
    if rank.local.precision.dtype == "float32":
        _refuse_roofline(served)
    by_family = {one.family: datasheet if one.source == DATASHEET else fitted for one in served}
    return OperatorSources(
        efficiency=_merged(fitted, datasheet, by_family, default),
        constants=by_family,
        tables=OperatorTables(lookups=lookups) if lookups else None,
        families=tuple(served),
    )


def _refuse_roofline(served: Sequence[FamilySource]) -> None:
    """Raise `ScenarioError` if a float32 product has no table: the peaks on file are for 16 bits
    and fewer."""
    for one in served:
        if one.family in _MULTIPLY and not one.tables:
            raise ScenarioError(
                f"engine.dtype float32: {one.family} would be priced at a 16-bit peak "
                f"({one.note or one.source}); give engine.operators tables measured in float32"
            )


def _needs(rank: RankShard) -> dict[TableKind, list[Any]]:
    """Return the operators and kinds of layers of a model, by the family that must serve them."""
    mixers = tuple(mixer for mixer, _ in rank.local.mixers)
    operators = [
        *token_operators(rank, _SIZES),
        *group_operators(rank, _SIZES),
        *logit_operators(rank, _SIZES, 1.0),
    ]
    if rank.layout.pipeline_parallel_size > 1:
        operators.append(stage_send(rank, _SIZES))
    needs: dict[TableKind, list[Any]] = {}
    for operator in operators:
        if operator.kind != "attention":
            needs.setdefault(family_of(operator, mixers), []).append(operator)
    for mixer in mixers:
        needs.setdefault(decode_family(mixer), []).append((find_decode, mixer))
        needs.setdefault(prefill_family(mixer), []).append((find_prefill, mixer))
    return {family: needs[family] for family in PRICED if family in needs}


def _lack(tables: OperatorTables, family: TableKind, rank: RankShard, needed: Sequence[Any]) -> str:
    """Return why tables do not serve a whole family; empty if they do."""
    if not tables.lookups.get(family):
        return f"no {family} table"
    if family in ATTENTION and rank.layout.context_ranks > 1:
        return "attention was measured on whole contexts, not parts that ranks split"
    for one in needed:
        try:
            if isinstance(one, tuple):
                find, mixer = one
                find(tables, mixer, rank.local.precision)
            else:
                tables.find(one, rank)
        except Lack as reason:
            return str(reason)
    return ""


Reader = Callable[[TableKind], list[OperatorTable]]
"""Returns the tables that a source has of a family; raises `Lack`."""


def _reader(source: str, gpu: GpuSpec, model: ModelSpec, families: Sequence[TableKind]) -> Reader:
    """Return a reader of a source's tables; parquet takes a second, so it reads only
    ``families``."""
    if source == AIC or source.startswith(f"{AIC}:"):
        from costmodels.tables.aic_choice import aic_reader

        return aic_reader(source, gpu, model)
    from costmodels.tables.store import load_folder, load_table, own_folder

    if source == OURS:
        tables = load_folder(own_folder(gpu), families)
    elif is_folder(Path(source)):
        tables = load_folder(Path(source), families)
    else:
        tables = [load_table(Path(part.strip())) for part in source.split(",")]
    for table in tables:
        if table.meta.gpu != gpu.name:
            raise ScenarioError(
                f"{source} was measured on {table.meta.gpu}, the scenario's GPU is {gpu.name}"
            )
    return lambda family: [table for table in tables if table.meta.kind == family]


def _merged(
    fitted: Efficiency,
    datasheet: Efficiency,
    by_family: Mapping[TableKind, Efficiency],
    default: str,
) -> Efficiency:
    """Return the constants of each family's own source; families that the model lacks use the
    default's.

    The power limit belongs to no family; only the datasheet has none.
    """
    base = datasheet if default == DATASHEET else fitted
    if all(one is base for one in by_family.values()):
        return base
    values: dict[str, Any] = {}
    evidence = dict(base.evidence)
    for family, prefixes in _CONSTANTS.items():
        of_family = by_family.get(family, base)
        for constant in fields(Efficiency):
            if constant.name.startswith(prefixes):
                values[constant.name] = getattr(of_family, constant.name)
                if constant.name in of_family.evidence:
                    evidence[constant.name] = of_family.evidence[constant.name]
    return replace(base, **values, evidence=evidence)
