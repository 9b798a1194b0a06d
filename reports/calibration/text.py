"""What a calibration holds on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.screen import Screen
from reports.words import MISSING, duration, percent, significant

_GOOD, _FAIR = 0.05, 0.10


def print_import(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts of ``scenarios.calibration.import_command``."""
    screen = screen or Screen(max_width=160)
    tables = facts["tables"]
    points = sum(table["points"] for table in tables)
    screen.say(
        f"{facts['timings']:,} timings on {', '.join(facts['gpus'])}: {len(tables)} tables of "
        f"{points:,} shapes.",
        "bold",
    )
    screen.say(machine_text(facts), "dim")
    print_tables(screen, tables)
    print_fits(screen, tables)
    if facts["refused"]:
        screen.heading("Not timed")
        for row in facts["refused"]:
            screen.say(f"{row['family']} {row['kernel']}, {row['cases']:,} cases: {row['reason']}")
    screen.say("")
    screen.say(f"written to {facts['out']}; use it with --set engine.operators={facts['out']}")


def machine_text(facts: Mapping[str, Any]) -> str:
    """Where it was measured, with what."""
    found = []
    for machine in facts["machines"]:
        found.append(
            f"{machine.get('device')}, torch {machine.get('torch')}, triton "
            f"{machine.get('triton')}, {str(machine.get('date'))[:10]}"
        )
    return "; ".join(dict.fromkeys(found))


def print_tables(screen: Screen, tables: Sequence[Mapping[str, Any]]) -> None:
    """One row a table: its points, how well it predicts, how right the kernel is, its range."""
    screen.heading("Tables")
    rows = []
    for table in tables:
        held_out = table["held_out"] or {}
        rows.append(
            [
                " ".join(part for part in (table["family"], table["variant"]) if part),
                table["kernel"],
                table["formats"],
                f"{table['points']:,}",
                _error(screen, held_out.get("median")),
                _error(screen, held_out.get("p90")),
                MISSING if table["correctness"] is None else f"{table['correctness']:.1e}",
                range_text(table["range"]),
            ]
        )
    screen.table(
        ["family", "kernel", "formats", "points", "held out", "p90", "off by", "range"],
        rows,
        left=("kernel", "formats", "range"),
        wraps=("range",),
    )
    screen.say(
        "held out, p90: relative error at a fifth of the shapes, predicted from the other four "
        "fifths; shapes outside their range do not count. off by: the kernel's own worst relative "
        "error against a reference in 32 bits.",
        "dim",
    )


def print_fits(screen: Screen, tables: Sequence[Mapping[str, Any]]) -> None:
    """Latency and bandwidth of exchanges between ranks."""
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


def range_text(ranges: Mapping[str, Sequence[float]]) -> str:
    """``m 1-8,192, k 4,096``."""
    parts = []
    for name, (low, high) in ranges.items():
        write = size if name == "bytes" else plain
        parts.append(f"{name} {write(low)}" + (f"-{write(high)}" if high > low else ""))
    return ", ".join(parts)


def plain(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


def size(num_bytes: float) -> str:
    """Bytes with a binary prefix: message sizes are powers of two."""
    for prefix, unit in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if num_bytes >= unit:
            return f"{significant(num_bytes / unit)} {prefix}B"
    return f"{num_bytes:,.0f} B"


def _error(screen: Screen, error: float | None) -> Any:
    if error is None:
        return MISSING
    style = "green" if error <= _GOOD else "yellow" if error <= _FAIR else "red"
    return screen.text(percent(error), style)
