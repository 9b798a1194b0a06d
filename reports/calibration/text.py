"""Contents of a calibration as terminal text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from costmodels.tables.kinds import COLLECTIVES
from reports.numbers import MISSING, duration, percent, significant, whole_percent
from reports.terminal import Screen

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
COMPUTES = ("gemm", "grouped_gemm", "prefill_attention")


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
    if table["family"] in COMPUTES and peak and flops:
        return f"{significant(flops / 1e12)} TFLOP/s, {whole_percent(flops / peak)}"
    rate = device["peer_bytes_per_s" if table["family"] in COLLECTIVES else "hbm_bytes_per_s"]
    if not moved:
        return ""
    if table["family"] == "copy" and table["variant"] in ("h2d", "d2h"):
        return f"{significant(moved / 2e9)} GB/s"
    share = f", {whole_percent(moved / rate)}" if rate else ""
    return f"{significant(moved / 1e9)} GB/s{share}"


def answer_text(facts: Mapping[str, Any]) -> str:
    """Say in one sentence what the calibration contains."""
    tables = facts["tables"]
    families = dict.fromkeys(table["family"] for table in tables)
    points = sum(table["points"] for table in tables)
    return (
        f"{points:,} shapes of {len(families)} families of kernels on {', '.join(facts['gpus'])}, "
        f"in {len(tables)} tables."
    )


_GOOD, _FAIR = 0.05, 0.10
# Least screen width for a table with a column of ranges.
_WIDE = 150


def print_import(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts of an import, from ``scenarios.calibration.kernels``."""
    screen = screen or Screen(max_width=190)
    tables = facts["tables"]
    points = sum(table["points"] for table in tables)
    screen.say(
        f"{facts['timings']:,} timings on {', '.join(facts['gpus'])}: {len(tables)} tables of "
        f"{points:,} shapes.",
        "bold",
    )
    screen.say(machine_text(facts), "dim")
    shares = facts["clock_shares"]
    if shares:
        screen.say(
            f"SM clock at {whole_percent(min(shares))} to {whole_percent(max(shares))} of its "
            "highest, before and after each family.",
            "dim",
        )
    _tables(screen, tables)
    _fits(screen, tables)
    if facts["refused"]:
        screen.heading("Not timed")
        for row in facts["refused"]:
            screen.say(f"{row['family']} {row['kernel']}, {row['cases']:,} cases: {row['reason']}")
    screen.say("")
    target = f"--gpu {facts['gpu_file']} " if facts["gpu_file"] else ""
    screen.say(
        f"written to {facts['out']}; use it with {target}--set engine.operators={facts['out']}"
    )


def print_calibration(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts of a calibration, from ``scenarios.calibration.contents``."""
    screen = screen or Screen(max_width=190)
    screen.say(answer_text(facts), "bold")
    screen.say(machine_text(facts), "dim")
    screen.heading("How much of the device kernels reach")
    rows = []
    for table in facts["tables"]:
        reached = shares(table)
        times = [seconds for curve in table["curves"] for seconds in curve["seconds"]]
        kernel = f"{table['kernel']} {formats_of(table)}"
        rows.append(
            [
                name_of(table),
                *([kernel] if screen.width >= _WIDE else []),
                best_text(facts, table),
                "" if table["family"] == "launch" else whole_percent(median(reached)),
                duration(min(times)),
                duration(max(times)),
            ]
        )
    wide = ["kernel"] if screen.width >= _WIDE else []
    headers = ["", *wide, "best", "of bound", "from", "to"]
    screen.table(headers, rows, left=("kernel",))
    screen.say(
        "best: the most that any shape reached, with the share of the datasheet's peak. of bound: "
        "the roofline's bound over the time, the median of all shapes. from, to: times.",
        "dim",
    )
    _tables(screen, facts["tables"])
    _fits(screen, facts["tables"])


def _tables(screen: Screen, tables: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per table: its points, its prediction error, its kernel's numerical error,
    its range."""
    screen.heading("Tables")
    rows = []
    for table in tables:
        held_out = table["held_out"] or {}
        count = held_out.get("num_points")
        rows.append(
            [
                name_of(table),
                f"{table['kernel']} {formats_of(table)}",
                f"{table['points']:,}",
                _error(screen, held_out.get("median")),
                _error(screen, held_out.get("p90")),
                f"{count:,}" if count else MISSING,
                MISSING if table["correctness"] is None else f"{table['correctness']:.1e}",
            ]
        )
    headers = ["", "kernel", "points", "held out", "p90", "of", "off by"]
    if screen.width >= _WIDE:
        rows = [[*row, range_text(table["range"])] for row, table in zip(rows, tables, strict=True)]
        screen.table([*headers, "range"], rows, left=("kernel", "range"), wraps=("range",))
    else:
        screen.table(headers, rows, left=("kernel",))
    screen.say(
        "held out, p90: median and 90th percentile of the relative error at a fifth of the shapes, "
        "predicted from the other four fifths; of: how many of these lie inside the others' range. "
        "off by: the kernel's own worst relative error against a reference in 32 bits.",
        "dim",
    )
    if screen.width < _WIDE:
        screen.heading("Ranges")
        ranges = {(name_of(table), range_text(table["range"])): None for table in tables}
        grid = screen.grid("left", "left", gap=2)
        for name, text in ranges:
            grid.add_row(screen.text(name), screen.text(text, "dim"))
        screen.show(grid)


def _fits(screen: Screen, tables: Sequence[Mapping[str, Any]]) -> None:
    """Print latency and bandwidth of the exchanges between ranks."""
    fits = [(table, fit) for table in tables for fit in table["fits"]]
    if not fits:
        return
    screen.heading("Exchanges as latency and bandwidth")
    rows = []
    for table, fit in fits:
        for place, (end, latency_s, bytes_per_s) in enumerate(fit["regimes"]):
            first = place == 0
            rows.append(
                [
                    f"{table['family']}, {fit['ranks']} ranks" if first else "",
                    size(end),
                    duration(latency_s),
                    f"{significant(bytes_per_s / 1e9)} GB/s",
                    _error(screen, fit["median"]) if first else "",
                    _error(screen, fit["held_out"]) if first else "",
                ]
            )
    screen.table(["", "up to", "latency", "bandwidth", "error", "held out"], rows)


def _error(screen: Screen, error: float | None) -> Any:
    if error is None:
        return MISSING
    style = "green" if error <= _GOOD else "yellow" if error <= _FAIR else "red"
    return screen.text(percent(error), style)
