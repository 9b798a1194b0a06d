"""The reports of a calibration and of an import of timings, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from reports.calibration.figures import held_out_errors, roofline, table_figure
from reports.calibration.words import (
    best_text,
    formats_of,
    machine_text,
    name_of,
    range_text,
    shares,
    size,
)
from reports.document import (
    ANY_WIDTH,
    Block,
    Cell,
    Column,
    Details,
    Fact,
    Facts,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tone,
    numbers,
)
from reports.numbers import MISSING, duration, percent, significant, whole_percent
from sim import __version__

_GOOD, _FAIR = 0.05, 0.10
# Least width of a terminal for a table with a column of ranges.
_WIDE = (150, ANY_WIDTH[1])
_NARROW = (0, _WIDE[0] - 1)
_KERNELS = Column("Kernels", terminal="")


def write_calibration_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path. Raises `ScenarioError` if the file cannot be written."""
    from reports.html import save_page

    return save_page(calibration_report(facts), path)


def calibration_report(facts: Mapping[str, Any]) -> Report:
    """Return the report of the facts that ``fleetcast calibrate show --format json`` prints."""
    tables = facts["tables"]
    families = dict.fromkeys(table["family"] for table in tables)
    points = sum(table["points"] for table in tables)
    figures = [Figure(partial(table_figure, table, place)) for place, table in enumerate(tables)]
    return Report(
        eyebrow="Measured kernels",
        heading=", ".join(facts["gpus"]),
        headline=f"{points:,} shapes of {len(families)} families of kernels on "
        f"{', '.join(facts['gpus'])}, in {len(tables)} tables.",
        sentences=[machine_text(facts)],
        sections=[
            _reached(facts),
            _tables(tables),
            _ranges(tables),
            Section("roof", "Under the roofline", [Figure(partial(roofline, facts))], on="page"),
            _fits(tables),
            Section("shapes", "Efficiency over shapes", figures, on="page"),
            Section(
                "errors",
                "How well tables predict",
                [Figure(partial(held_out_errors, tables))],
                on="page",
            ),
            _sources(facts),
        ],
        version=facts["fleetcast_version"],
        width=190,
        pipe_width=None,
    )


def import_report(facts: Mapping[str, Any]) -> Report:
    """Return the report of an import of timings, from ``scenarios.calibration.kernels``."""
    tables, clocks = facts["tables"], facts["clock_shares"]
    points = sum(table["points"] for table in tables)
    use = f"--gpu {facts['gpu_file']} " if facts["gpu_file"] else ""
    clock = clocks and (
        f"SM clock at {whole_percent(min(clocks))} to {whole_percent(max(clocks))} of its "
        "highest, before and after each family."
    )
    refused = [
        Text(f"{row['family']} {row['kernel']}, {row['cases']:,} cases: {row['reason']}")
        for row in facts["refused"]
    ]
    return Report(
        eyebrow="Imported timings",
        heading=", ".join(facts["gpus"]),
        headline=f"{facts['timings']:,} timings on {', '.join(facts['gpus'])}: {len(tables)} "
        f"tables of {points:,} shapes.",
        sentences=[machine_text(facts), clock or ""],
        sections=[
            _tables(tables),
            _ranges(tables),
            _fits(tables),
            Section("refused", "Not timed", refused),
        ],
        closing=[
            f"written to {facts['out']}; use it with {use}--set engine.operators={facts['out']}"
        ],
        version=__version__,
        width=190,
        pipe_width=None,
    )


def _reached(facts: Mapping[str, Any]) -> Section:
    rows = []
    for table in facts["tables"]:
        times = [seconds for curve in table["curves"] for seconds in curve["seconds"]]
        is_launch = table["family"] == "launch"
        rows.append(
            [
                name_of(table),
                _kernel(table),
                best_text(facts, table),
                "" if is_launch else whole_percent(median(shares(table))),
                "" if is_launch else percent(median(shares(table))),
                duration(min(times)),
                duration(max(times)),
            ]
        )
    columns = [
        *numbers("Best"),
        Column("Of bound", "number", on="terminal"),
        Column("Of bound", "number", on="page"),
        *numbers("From", "To"),
    ]
    wide = [_KERNELS, Column("Kernel"), *columns]
    narrow = [_KERNELS, Column("Kernel", on="page"), *columns]
    return Section(
        "reached",
        "How much of the device kernels reach",
        [
            Table(wide, rows, on="terminal", widths=_WIDE),
            Table(narrow, rows, widths=_NARROW),
            Text(
                "best: the most that any shape reached, with the share of the datasheet's peak. of "
                "bound: the roofline's bound over the time, the median of all shapes. from, to: "
                "times.",
                "note",
            ),
        ],
    )


def _tables(tables: Sequence[Mapping[str, Any]]) -> Section:
    """Return a row per table: its points, its prediction error, its kernel's numerical error, and
    on a wide terminal its range."""
    rows: list[Row] = []
    for table in tables:
        held_out = table["held_out"] or {}
        count = held_out.get("num_points")
        rows.append(
            [
                name_of(table),
                _kernel(table),
                f"{table['points']:,}",
                _error(held_out.get("median")),
                _error(held_out.get("p90")),
                f"{count:,}" if count else MISSING,
                MISSING if table["correctness"] is None else f"{table['correctness']:.1e}",
                range_text(table["range"]),
            ]
        )
    columns = [
        _KERNELS,
        Column("Kernel"),
        *numbers("Points"),
        Column("Held out", "number"),
        Column("p90", "number"),
        *numbers("Of"),
        Column("Off by", "number"),
    ]
    return Section(
        "tables",
        "Tables",
        [
            Table([*columns, Column("Range", wraps=True)], rows, on="terminal", widths=_WIDE),
            Table([*columns, Column("Range", "note", on="page")], rows, widths=_NARROW),
            Text(
                "held out, p90: median and 90th percentile of the relative error at a fifth of the "
                "shapes, predicted from the other four fifths; of: how many of these lie inside "
                "the others' range. off by: the kernel's own worst relative error against a "
                "reference in 32 bits.",
                "note",
            ),
        ],
    )


def _ranges(tables: Sequence[Mapping[str, Any]]) -> Section:
    """Return the ranges of the tables, for terminals too narrow to hold them beside the rest."""
    ranges = dict.fromkeys((name_of(table), range_text(table["range"])) for table in tables)
    columns = [_KERNELS, Column("Range", "note", wraps=True)]
    block = Table(columns, list(ranges), headed=False, widths=_NARROW)
    return Section("ranges", "Ranges", [block], on="terminal")


def _fits(tables: Sequence[Mapping[str, Any]]) -> Section:
    """Return latency and bandwidth of the exchanges between ranks."""
    rows: list[Row] = []
    for table in tables:
        for fit in table["fits"]:
            for place, (end, latency_s, bytes_per_s) in enumerate(fit["regimes"]):
                name = f"{table['family']}, {fit['ranks']} ranks"
                rows.append(
                    [
                        name,
                        "" if place else name,
                        size(end),
                        duration(latency_s),
                        f"{significant(bytes_per_s / 1e9)} GB/s",
                        "" if place else _error(fit["median"]),
                        "" if place else _error(fit["held_out"]),
                    ]
                )
    exchange = [Column("Exchange", on="page"), Column("", on="terminal")]
    headings = ("Up to", "Latency", "Bandwidth", "Error", "Held out")
    table_of_fits = Table([*exchange, *numbers(*headings)], rows)
    return Section("exchanges", "Exchanges as latency and bandwidth", [table_of_fits])


def _sources(facts: Mapping[str, Any]) -> Section:
    sources = [
        *(Fact(f"{machine.get('device')}", _machine(machine)) for machine in facts["machines"]),
        *(Fact(name, f"sha256 {digest}") for name, digest in facts["inputs"].items()),
        Fact("Licence", ", ".join(facts["licences"])),
    ]
    hashes = [
        Fact(f"{name_of(table)}, {table['kernel']}", table["hash"]) for table in facts["tables"]
    ]
    blocks: list[Block] = [
        Facts(sources),
        Details(f"{len(hashes)} tables, each with its SHA-256", [Facts(hashes)]),
    ]
    return Section("sources", "Where it comes from", blocks, on="page")


def _machine(machine: Mapping[str, Any]) -> str:
    known = {key: value for key, value in machine.items() if key not in ("kind", "device", "id")}
    return ", ".join(
        f"{key} {value}" for key, value in known.items() if not isinstance(value, dict | list)
    )


def _kernel(table: Mapping[str, Any]) -> str:
    return f"{table['kernel']} {formats_of(table)}"


def _error(error: float | None) -> str | Cell:
    if error is None:
        return MISSING
    tone: Tone = "good" if error <= _GOOD else "fair" if error <= _FAIR else "bad"
    return Cell(percent(error), tone)
