"""What operator tables hold, as plain values for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from costmodels.tables.kinds import KINDS
from costmodels.tables.table import OperatorTable


def table_facts(table: OperatorTable) -> dict[str, Any]:
    """One table: what it is of, its range, its errors."""
    meta = table.meta
    return {
        "family": meta.kind,
        "kernel": meta.kernel,
        "formats": formats_text(table),
        "variant": meta.variant,
        "engine": f"{meta.engine} {meta.engine_version}",
        "gpu": meta.gpu,
        "date": meta.date,
        "launches": meta.launches,
        "points": len(table),
        "hash": table.content_hash,
        "held_out": meta.held_out and asdict(meta.held_out),
        "correctness": meta.correctness,
        "range": {
            name: [float(table.columns[name].min()), float(table.columns[name].max())]
            for name in KINDS[meta.kind].shape
        },
        "fits": [asdict(fit) for fit in meta.fits],
    }


def formats_text(table: OperatorTable) -> str:
    """``bfloat16``, or the formats of activations and weights (of keys and values) that differ."""
    precision = table.meta.precision
    is_attention = table.meta.kind.endswith(("attention", "decode"))
    other = precision.kv if is_attention else precision.weights
    return "/".join(dict.fromkeys([precision.activations, other]))


def calibration_facts(tables: Sequence[OperatorTable]) -> dict[str, Any]:
    """A whole calibration: its tables and the machines they are of."""
    machines = {str(m.get("id")): dict(m) for table in tables for m in table.meta.machines}
    inputs = {name: digest for table in tables for name, digest in table.meta.inputs.items()}
    return {
        "gpus": sorted({table.meta.gpu for table in tables}),
        "machines": list(machines.values()),
        "inputs": inputs,
        "licences": sorted({table.meta.licence for table in tables}),
        "tables": [table_facts(table) for table in tables],
    }
