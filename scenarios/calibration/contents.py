"""Calibrations by name, what their operator tables hold, and the efficiency of every point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.hardware.gpus import load_gpu
from costmodels.operators.sources import AIC, OURS, Choice
from costmodels.tables.ideal import ideal_seconds, link_bytes, work
from costmodels.tables.kinds import COLLECTIVES, KINDS, PEAKS
from costmodels.tables.shapes import LOOKUPS
from costmodels.tables.store import load_folder, load_table, own_folder
from costmodels.tables.table import OperatorTable
from costmodels.work import Array
from scenarios.files.yaml_text import parse_yaml
from sim import __version__
from sim.errors import ScenarioError


def table_facts(table: OperatorTable) -> dict[str, Any]:
    """Return the facts of one table: what it measures, its range, its errors."""
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
    """Return the table's formats, e.g. ``bfloat16``, or activations/weights (or /KV) if they
    differ."""
    precision = table.meta.precision
    is_attention = table.meta.kind.endswith(("attention", "decode"))
    other = precision.kv if is_attention else precision.weights
    return "/".join(dict.fromkeys([precision.activations, other]))


def calibration_facts(tables: Sequence[OperatorTable]) -> dict[str, Any]:
    """Return the facts of a whole calibration: its tables and the machines they were measured
    on."""
    machines = {str(m.get("id")): dict(m) for table in tables for m in table.meta.machines}
    inputs = {name: digest for table in tables for name, digest in table.meta.inputs.items()}
    return {
        "gpus": sorted({table.meta.gpu for table in tables}),
        "machines": list(machines.values()),
        "inputs": inputs,
        "licences": sorted({table.meta.licence for table in tables}),
        "tables": [table_facts(table) for table in tables],
    }


_PEAKS = ("bf16_flop_per_s", "fp8_flop_per_s", "int8_op_per_s", "fp4_flop_per_s")


def surface_facts(tables: Sequence[OperatorTable], name: str) -> dict[str, Any]:
    """Return what ``fleetcast calibrate show`` shows of the tables that ``name`` stands for."""
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
    """Return curves of shapes and times, with the work done; ``share`` is the roofline bound's
    share."""
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
    """Return FLOPs and bytes of each point; link traffic counts as bytes, a launch has neither."""
    meta, columns = table.meta, table.columns
    none = np.zeros(len(table))
    if meta.kind in COLLECTIVES:
        return none, link_bytes(meta.kind, columns)
    if meta.kind == "launch":
        return none, none
    return work(meta.kind, columns, meta.precision, meta.variant)


_AIC_MODES = ("bfloat16", "fp8", "fp8_block")
_AIC_KV = ("bfloat16", "fp8")
DEFAULT_GPU = "H200"


def load_named(name: str, gpu: str | None) -> list[OperatorTable]:
    """Load the tables of a name; ``gpu`` selects among those of `ours` and `aic`.

    Raises `ScenarioError` if there is no such calibration.
    """
    if name == OURS:
        return load_folder(own_folder(load_gpu(gpu or DEFAULT_GPU)))
    if name == AIC:
        return _aic(gpu or DEFAULT_GPU)
    path = Path(name)
    if path.is_dir():
        return load_folder(path)
    if not path.is_file():
        raise ScenarioError(
            f"{name!r} is no calibration: neither {OURS}, {AIC}, nor a folder or file of tables"
        )
    return [load_table(path)]


def _aic(gpu: str) -> list[OperatorTable]:
    """Load all of AIConfigurator's tables for a GPU in vLLM, in the formats that ours may have too.

    Raises `ScenarioError` if it has none.
    """
    from costmodels.tables.aic import AIC_KINDS, AicChoice, aic_tables, check_package

    check_package(gpu)
    choices = [AicChoice(gemm_mode=mode) for mode in _AIC_MODES]
    choices += [AicChoice(kv=kv) for kv in _AIC_KV[1:]]
    choices += [AicChoice(workload="balanced")]
    found: dict[str, OperatorTable] = {}
    for kind in AIC_KINDS:
        for choice in choices:
            try:
                (table,) = aic_tables(gpu, choice, [kind]).values()
            except ScenarioError:  # not measured in this format
                continue
            found.setdefault(table.content_hash, table)
    if not found:
        raise ScenarioError(f"aiconfigurator-core has no operators of {gpu}")
    return list(found.values())


def parse_operators(text: str) -> Choice:
    """Parse ``--operators``: one source, or ``{family: source, ...}``. Raises `ScenarioError`."""
    if not text.lstrip().startswith("{"):
        return text
    values, _ = parse_yaml(text, "--operators")
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise ScenarioError(f"--operators {text}: write it as {{family: source, ...}}")
    return {str(family): source for family, source in values.items()}
