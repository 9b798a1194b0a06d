"""Predicted against measured on a terminal: a row a statistic, and what was compared beneath."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.screen import TONES, Screen
from reports.validation.facts import error_cell
from reports.words import LATENCY_LABELS, THROUGHPUT_LABELS, duration, humanised, number, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_HEADERS = ("metric", "statistic", "predicted", "measured", "error", "band")


def print_accuracy(content: dict[str, Any], console: Console | None = None) -> None:
    """Print the JSON of a comparison to a terminal, a file or a pipe.

    Where the output cannot take colour or Unicode, plain text and ASCII are written.
    """
    screen = Screen(console)
    figures = content["figures"]
    screen.say(_title(figures), "bold")
    _print_figures(screen, figures)
    if any(figure["band"] is not None for figure in figures):
        note = "± is the 90% band of the prediction; an asterisk: the measured value is outside"
        screen.say(note, "dim")
    if content["warnings"]:
        screen.heading("Mind")
        for warning in content["warnings"]:
            screen.say(f"! {warning}", "yellow")
    screen.say("")
    for part, values in content["conditions"].items():
        said = "; ".join(f"{_label(name)}: {_said(value)}" for name, value in values.items())
        screen.say(f"{part}: {said}", "dim")


def _print_figures(screen: Screen, figures: list[dict[str, Any]]) -> None:
    has_band = any(figure["band"] is not None for figure in figures)
    headers = _HEADERS if has_band else _HEADERS[:-1]
    rows: list[list[str | Text]] = []
    before = ""
    for figure in figures:
        error = error_cell(figure["error"])
        metric = _metric(figure["metric"])
        cells = [
            metric if metric != before else "",
            "" if figure["statistic"] == "value" else figure["statistic"],
            *(_quantity(figure[side], figure["unit"]) for side in _HEADERS[2:4]),
            screen.text(error.text, TONES[error.tone]),
            screen.text(_band(figure), "dim"),
        ]
        rows.append(cells[: len(headers)])
        before = metric
    screen.table(headers, rows, left=_HEADERS[:2], wraps=headers)


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
    return f"±{percent(figure['band'])}{'' if figure['in_band'] else ' *'}"


def _label(name: str) -> str:
    return LATENCY_LABELS.get(name) or humanised(name)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
