"""The report of a comparison of a run with measurements."""

from __future__ import annotations

from typing import Any

from reports.document import Cell, Column, Report, Row, Section, Table, Text, warning_section
from reports.numbers import (
    LATENCY_LABELS,
    THROUGHPUT_LABELS,
    band_text,
    duration,
    humanised,
    number,
)
from reports.validation.errors import error_cell
from sim import __version__


def comparison_report(content: dict[str, Any]) -> Report:
    """Return the report of the content of a comparison, as ``fleetcast compare --format json``
    prints it."""
    title = _title(content["figures"])
    return Report(
        eyebrow="Comparison with measurements",
        heading=content["figures"][0]["run"],
        headline=title,
        sections=[_figures(content["figures"]), warning_section(content["warnings"])],
        closing=[
            f"{part}: {'; '.join(f'{_label(name)}: {_said(v)}' for name, v in values.items())}"
            for part, values in content["conditions"].items()
        ],
        version=__version__,
        pipe_width=None,
    )


def _figures(figures: list[dict[str, Any]]) -> Section:
    rows: list[Row] = []
    before = ""
    for figure in figures:
        metric = _metric(figure["metric"])
        rows.append(
            [
                metric,
                metric if metric != before else "",
                "" if figure["statistic"] == "value" else figure["statistic"],
                *(_quantity(figure[side], figure["unit"]) for side in ("predicted", "measured")),
                error_cell(figure["error"]),
                Cell(_band(figure), "unsure"),
            ]
        )
        before = metric
    columns = [
        Column("Metric", on="page"),
        Column("Metric", on="terminal", wraps=True),
        Column("Statistic", wraps=True),
        *(Column(name, "number", wraps=True) for name in ("Predicted", "Measured", "Error")),
        Column("Band", "number", wraps=True),
    ]
    note = "± is the 90% band of the prediction; an asterisk: the measured value is outside"
    has_band = any(figure["band"] is not None for figure in figures)
    return Section(
        "figures",
        "Figures",
        [
            Table(columns if has_band else columns[:-1], rows),
            Text(note if has_band else "", "note"),
        ],
        terminal="",
    )


def _title(figures: list[dict[str, Any]]) -> str:
    first = figures[0]
    load = {"unknown": "load not known"}.get(first["regime"], f"{first['regime']} load")
    return f"Predicted against measured: {first['run']}, {load}"


def _metric(name: str) -> str:
    return LATENCY_LABELS.get(name) or THROUGHPUT_LABELS.get(name) or name


def _quantity(value: float, unit: str) -> str:
    return duration(value) if unit == "s" else f"{number(value, unit)} {unit}"


def _band(figure: dict[str, Any]) -> str:
    if figure["band"] is None:
        return ""
    return f"{band_text(figure['band'])}{'' if figure['in_band'] else ' *'}"


def _label(name: str) -> str:
    return LATENCY_LABELS.get(name) or humanised(name)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
