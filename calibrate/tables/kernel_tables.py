"""Build operator tables from kernel timings: one per family, kernel, formats and variant."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibrate.tables.cpu_target import cpu_target, is_cpu, write_target
from calibrate.tables.kernel_holdout import held_out_error
from calibrate.tables.kernel_lines import KernelLines, Timing, clock_shares
from calibrate.tables.link_fit import fit_links
from costmodels.hardware.gpus import GPU_FILE, GpuSpec, gpu_names, load_gpu
from costmodels.tables.kinds import COLLECTIVES, KINDS, Precision, TableKind
from costmodels.tables.store import save_table
from costmodels.tables.table import OperatorTable, TableMeta, operator_table
from costmodels.work import Array
from sim.errors import ScenarioError

LICENCE = "as fleetcast"
_ENGINE = "fleetcast"
# A clock below this share of the maximum was throttled.
_FULL_CLOCK = 0.95


def target_of(lines: KernelLines, name: str | None) -> GpuSpec:
    """Return the GPU that the lines are from; a processor becomes a target of its own
    (`cpu_target`).

    ``name`` is given by the user, from gpus.yaml or a file. Raises `ScenarioError` for several
    devices or an unknown one.
    """
    used = {timing.machine for timing in lines.timings}
    devices = sorted({str(lines.machines[machine].get("device")) for machine in used})
    if len(devices) > 1:
        raise ScenarioError(
            f"the lines are of several devices ({', '.join(devices)}): import those of each into a "
            "folder of its own"
        )
    if name is not None:
        return load_gpu(name)
    if is_cpu(lines):
        return cpu_target(lines)
    try:
        return load_gpu(devices[0])
    except ScenarioError as error:
        raise ScenarioError(
            f"device {devices[0]!r} is no GPU of gpus.yaml ({error}); name it with --gpu NAME, or "
            "describe it in a file and give --gpu path/to/gpu.yaml"
        ) from None


def build_tables(lines: KernelLines, gpu: GpuSpec) -> list[OperatorTable]:
    """Build all tables, with repeats merged by their median, and with their held-out and
    correctness errors."""
    groups: dict[tuple[str, ...], list[Timing]] = defaultdict(list)
    for timing in lines.timings:
        formats = _all_roles(timing.formats).values()
        groups[timing.family, timing.kernel, timing.variant, *formats].append(timing)
    return [_table(lines, gpu, group) for _, group in sorted(groups.items(), key=lambda g: g[0])]


def write_tables(tables: Sequence[OperatorTable], folder: Path) -> list[Path]:
    """Write each table to a file named after it, replacing the tables in the folder, and the
    device unless it is built in. Raises `ScenarioError` if a file cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.parquet"):
            old.unlink()
        gpu = tables[0].device
        if gpu.name not in gpu_names():
            write_target(gpu, folder / GPU_FILE)
        paths = []
        for table in tables:
            paths.append(folder / f"{table_name(table.meta)}.parquet")
            save_table(table, paths[-1])
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from None
    return paths


def table_name(meta: TableMeta) -> str:
    """Name a table by family, kernel, distinct formats and variant, as in
    ``gemm-torch-bfloat16``."""
    formats = dict.fromkeys(asdict(meta.precision).values())
    parts = [meta.kind, meta.kernel, *formats, meta.variant]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(part for part in parts if part))


def _table(lines: KernelLines, gpu: GpuSpec, group: Sequence[Timing]) -> OperatorTable:
    first = group[0]
    machines = [lines.machines[name] for name in sorted({timing.machine for timing in group})]
    errors = [timing.error for timing in group if timing.error is not None]
    graphs = {timing.is_graph for timing in group}
    meta = TableMeta(
        kind=first.family,
        gpu=gpu.name,
        engine=_ENGINE,
        engine_version=_versions(machines),
        kernel=first.kernel,
        precision=Precision(**_all_roles(first.formats)),
        variant=first.variant,
        date=max(str(machine.get("date", "unknown")) for machine in machines),
        attribution=f"fleetcast's own measurement on {machines[0].get('device')}",
        licence=LICENCE,
        is_cool=min(clock_shares(lines, first.family), default=1.0) >= _FULL_CLOCK,
        launches=_launches(graphs, is_host=is_cpu(lines)),
        machines=tuple(machines),
        inputs=dict(lines.inputs),
        correctness=max(errors) if errors else None,
    )
    table = operator_table(meta, _columns(first.family, group), gpu=gpu)
    meta = replace(meta, held_out=held_out_error(table))
    if first.family in COLLECTIVES:
        meta = replace(meta, fits=fit_links(table))
    return replace(table, meta=meta)


def _launches(graphs: set[bool], *, is_host: bool) -> str:
    if is_host:
        return "host"
    return "graph" if graphs == {True} else "eager" if graphs == {False} else "both"


def _all_roles(formats: Mapping[str, str]) -> dict[str, str]:
    """Return the formats of all roles. Those that a kernel does not specify have the format it
    computes in."""
    activations = formats.get("activations", "bfloat16")
    return {
        "activations": activations,
        "weights": formats.get("weights", activations),
        # A recurrent state is what linear attention keeps in place of keys and values.
        "kv": formats.get("state", formats.get("kv", activations)),
    }


def _columns(family: TableKind, group: Sequence[Timing]) -> dict[str, Array]:
    names = KINDS[family].shape
    shapes = [timing.shape for timing in group]
    if family == "elementwise":
        shapes = _with_row_bytes(group)
    keyed = sorted(
        (tuple(shape[name] for name in names), timing.seconds)
        for shape, timing in zip(shapes, group, strict=True)
    )
    rows = [
        (*shape, median(seconds for _, seconds in same))
        for shape, same in groupby(keyed, key=lambda pair: pair[0])
    ]
    columns = np.array(rows, np.float64).T
    return dict(zip((*names, "seconds"), columns, strict=True))


def _with_row_bytes(group: Sequence[Timing]) -> list[Mapping[str, float]]:
    """Add the bytes per row of each width, taken from the tallest shape, where a norm's weights
    hardly count."""
    tallest: dict[float, Timing] = {}
    for timing in group:
        known = tallest.setdefault(timing.shape["width"], timing)
        if timing.shape["rows"] > known.shape["rows"]:
            tallest[timing.shape["width"]] = timing
    a_row = {width: round(t.num_bytes / t.shape["rows"]) for width, t in tallest.items()}
    return [
        {"rows": timing.shape["rows"], "bytes_per_row": float(a_row[timing.shape["width"]])}
        for timing in group
    ]


def _versions(machines: Sequence[Mapping[str, Any]]) -> str:
    texts = [f"torch {m.get('torch')}, triton {m.get('triton')}" for m in machines]
    return "; ".join(dict.fromkeys(texts))
