"""Every point of a calibration with the share of the device's peaks that it reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodels.tables.ideal import ideal_seconds, link_bytes, work
from costmodels.tables.kinds import COLLECTIVES, KINDS, PEAKS
from costmodels.tables.shapes import LOOKUPS
from costmodels.tables.table import Array, OperatorTable
from scenarios import __version__
from scenarios.calibration.facts import calibration_facts

_PEAKS = ("bf16_flop_per_s", "fp8_flop_per_s", "int8_op_per_s", "fp4_flop_per_s")


def surface_facts(tables: Sequence[OperatorTable], name: str) -> dict[str, Any]:
    """What ``fleetcast calibrate show`` shows of the tables that ``name`` stands for."""
    gpu = tables[0].device
    facts = calibration_facts(tables)
    for table, known in zip(tables, facts["tables"], strict=True):
        known |= _surface(table)
    return {
        "fleetcast_version": __version__,
        "name": name,
        **facts,
        "device": {
            "name": gpu.name,
            "peaks_flop_per_s": {peak: value for peak in _PEAKS if (value := getattr(gpu, peak))},
            "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
            "peer_bytes_per_s": gpu.peer_bytes_per_s,
        },
    }


def _surface(table: OperatorTable) -> dict[str, Any]:
    """Curves of shapes and times, with the work done; ``share`` is of the roofline's bound."""
    meta, columns = table.meta, table.columns
    flops, num_bytes = _work(table)
    bound_s = ideal_seconds(meta.kind, columns, table.device, meta.precision, meta.variant)
    kind = KINDS[meta.kind]
    lookup = LOOKUPS[meta.kind](table)
    curves = []
    for curve in range(lookup.num_curves):
        rows = lookup.curve_rows(curve)
        curves.append(
            {
                "at": {n: float(columns[n][rows.start]) for n in (*kind.same, *kind.near)},
                "axes": {name: columns[name][rows].tolist() for name in kind.axes},
                "seconds": table.seconds[rows].tolist(),
                "share": (bound_s[rows] / table.seconds[rows]).tolist(),
                "flops": flops[rows].tolist(),
                "bytes": num_bytes[rows].tolist(),
            }
        )
    return {"peak": PEAKS[meta.precision.activations], "curves": curves}


def _work(table: OperatorTable) -> tuple[Array, Array]:
    """FLOPs and bytes of each point; what crosses links counts as bytes, a launch as none."""
    meta, columns = table.meta, table.columns
    none = np.zeros(len(table))
    if meta.kind in COLLECTIVES:
        return none, link_bytes(meta.kind, columns)
    if meta.kind == "launch":
        return none, none
    return work(meta.kind, columns, meta.precision, meta.variant)
