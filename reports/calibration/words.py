"""Names and texts of a calibration's tables, kernels and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.tables.kinds import COLLECTIVES
from reports.numbers import significant, whole_percent

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_COMPUTES = ("gemm", "grouped_gemm", "prefill_attention")


def name_of(table: Mapping[str, Any]) -> str:
    """Name a table's family and variant: ``elementwise silu_mul``."""
    return " ".join(part for part in (table["family"], table["variant"]) if part)


def formats_of(table: Mapping[str, Any]) -> str:
    """Write a table's formats with short names for 16-bit types: ``fp8/fp8_block``."""
    return "/".join(_SHORT.get(part, part) for part in str(table["formats"]).split("/"))


def machine_text(facts: Mapping[str, Any]) -> str:
    """Write which machines and software the calibration was measured with."""
    found = [
        f"{machine.get('device')}, torch {machine.get('torch')}, triton {machine.get('triton')}, "
        f"{str(machine.get('date'))[:10]}"
        for machine in facts["machines"]
    ]
    engines = [f"{table['gpu']}, {table['engine']}" for table in facts["tables"]]
    return "; ".join(dict.fromkeys(found or engines))


def range_text(ranges: Mapping[str, Sequence[float]]) -> str:
    """Write the range of each axis: ``m 1-8,192, k 4,096``."""
    parts = []
    for name, (low, high) in ranges.items():
        write = size if name == "bytes" else plain
        parts.append(f"{name} {write(low)}" + (f"-{write(high)}" if high > low else ""))
    return ", ".join(parts)


def shape_text(shape: Mapping[str, float]) -> str:
    """Write one shape: ``n 4,096, k 4,096``."""
    return ", ".join(
        f"{name} {size(value) if name == 'bytes' else plain(value)}"
        for name, value in shape.items()
    )


def plain(value: float) -> str:
    """Write a count with thousands separators."""
    return f"{value:,.0f}"


def size(num_bytes: float) -> str:
    """Write bytes with a binary prefix, because message sizes are powers of two."""
    for prefix, unit in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if num_bytes >= unit:
            return f"{significant(num_bytes / unit)} {prefix}B"
    return f"{num_bytes:,.0f} B"


def shares(table: Mapping[str, Any]) -> list[float]:
    """Return the share of the roofline bound at every point of a table."""
    return [share for curve in table["curves"] for share in curve["share"]]


def best_text(facts: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """Write the highest rate that any shape reached: ``753 TFLOP/s, 76% of peak``, or bytes per
    second."""
    flops = best_s = moved = 0.0
    for curve in table["curves"]:
        for work, num_bytes, seconds in zip(
            curve["flops"], curve["bytes"], curve["seconds"], strict=True
        ):
            best_s = max(best_s, seconds)
            flops, moved = max(flops, work / seconds), max(moved, num_bytes / seconds)
    device = facts["device"]
    peak = device["peaks_flop_per_s"].get(table["peak"])
    if table["family"] in _COMPUTES and peak and flops:
        return f"{significant(flops / 1e12)} TFLOP/s, {whole_percent(flops / peak)}"
    rate = device["peer_bytes_per_s" if table["family"] in COLLECTIVES else "hbm_bytes_per_s"]
    if not moved:
        return ""
    if table["family"] == "copy" and table["variant"] in ("h2d", "d2h"):
        return f"{significant(moved / 2e9)} GB/s"
    share = f", {whole_percent(moved / rate)}" if rate else ""
    return f"{significant(moved / 1e9)} GB/s{share}"
