"""The page of a calibration: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from reports.calibration.figures import held_out_plot, roofline_plot, table_plot
from reports.calibration.text import (
    answer_text,
    best_text,
    formats_of,
    machine_text,
    name_of,
    range_text,
    shares,
    size,
)
from reports.numbers import MISSING, duration, percent, significant
from reports.templates import Column, render_page, save_page

_TABLES = (
    Column("Kernels"),
    Column("Kernel, formats"),
    Column("Shapes", "n"),
    Column("Best", "n"),
    Column("Of bound, median", "n"),
    Column("Held out", "n"),
    Column("p90", "n"),
    Column("Off by", "n"),
)
_RANGES = (Column("Kernels"), Column("Range"))
_FITS = (
    Column("Exchange"),
    Column("Up to", "n"),
    Column("Latency", "n"),
    Column("Bandwidth", "n"),
    Column("Error", "n"),
    Column("Held out", "n"),
)


def write_calibration_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path. Raises `ScenarioError` if the file cannot be written."""
    return save_page(render_calibration(facts), path)


def render_calibration(facts: Mapping[str, Any]) -> str:
    """Render the page from the facts returned by ``scenarios.calibration.contents``."""
    tables = facts["tables"]
    surfaces = [table_plot(facts, table, place) for place, table in enumerate(tables)]
    plots = {
        plot.name: plot
        for plot in (roofline_plot(facts), held_out_plot(facts), *surfaces)
        if plot is not None
    }
    return render_page(
        "calibration/page.html.j2",
        plots=plots,
        surfaces=[plot.name for plot in surfaces if plot is not None],
        title=f"Calibration {facts['name']}",
        eyebrow="Measured kernels",
        heading=", ".join(facts["gpus"]),
        answer=answer_text(facts),
        reason=machine_text(facts),
        version=facts["fleetcast_version"],
        table_columns=_TABLES,
        tables=[_table_row(facts, table) for table in tables],
        range_columns=_RANGES,
        ranges=list(dict.fromkeys((name_of(t), range_text(t["range"])) for t in tables)),
        fit_columns=_FITS,
        fits=_fit_rows(facts),
        sources=[
            *((f"{m.get('device')}", _machine(m)) for m in facts["machines"]),
            *((name, f"sha256 {digest}") for name, digest in facts["inputs"].items()),
            ("Licence", ", ".join(facts["licences"])),
        ],
        hashes=[(f"{name_of(t)}, {t['kernel']}", t["hash"]) for t in tables],
    )


def _table_row(facts: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    held_out = table["held_out"] or {}
    is_launch = table["family"] == "launch"
    return [
        name_of(table),
        f"{table['kernel']} {formats_of(table)}",
        f"{table['points']:,}",
        best_text(facts, table),
        "" if is_launch else percent(median(shares(table))),
        _error(held_out.get("median")),
        _error(held_out.get("p90")),
        MISSING if table["correctness"] is None else f"{table['correctness']:.1e}",
    ]


def _fit_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for table in facts["tables"]:
        for fit in table["fits"]:
            for place, (end, latency_s, bytes_per_s) in enumerate(fit["regimes"]):
                ends = [_error(fit["median"]), _error(fit["held_out"])] if not place else ["", ""]
                rows.append(
                    [
                        f"{table['family']}, {fit['ranks']} ranks",
                        size(end),
                        duration(latency_s),
                        f"{significant(bytes_per_s / 1e9)} GB/s",
                        *ends,
                    ]
                )
    return rows


def _machine(machine: Mapping[str, Any]) -> str:
    known = {key: value for key, value in machine.items() if key not in ("kind", "device", "id")}
    return ", ".join(
        f"{key} {value}" for key, value in known.items() if not isinstance(value, dict | list)
    )


def _error(error: float | None) -> str:
    return MISSING if error is None else percent(error)
