"""Predicted against measured on a terminal: a row a statistic, and what was compared beneath."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.validation_facts import error_cell
from reports.words import LATENCY_LABELS, THROUGHPUT_LABELS, duration, humanised, number, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_MAX_WIDTH = 100
_HEADERS = ("metric", "statistic", "predicted", "measured", "error", "band")
_TONES = {"good": "green", "fair": "yellow", "poor": "red", "": ""}
_ASCII = str.maketrans({"\N{EN DASH}": "-", "µ": "u", "±": "+-"})


def print_accuracy(content: dict[str, Any], console: Console | None = None) -> None:
    """Print the JSON of a comparison to a terminal, a file or a pipe.

    Where the output cannot take colour or Unicode, plain text and ASCII are written.
    """
    from rich.console import Console

    _Printer(console or Console(highlight=False)).print_all(content)


class _Printer:
    """Carries the console and its limits."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii_only = console.options.ascii_only
        self._width = min(console.width, _MAX_WIDTH)

    def print_all(self, content: dict[str, Any]) -> None:
        figures = content["figures"]
        self._show(self._text(_title(figures), "bold"))
        self._table(figures)
        if any(figure["band"] is not None for figure in figures):
            note = "± is the 90% band of the prediction; an asterisk: the measured value is outside"
            self._show(self._text(note, "dim"))
        if content["warnings"]:
            self._show(self._text("\nMind", "bold"))
            for warning in content["warnings"]:
                self._show(self._text(f"! {warning}", "yellow"))
        self._show("")
        for part, values in content["conditions"].items():
            said = "; ".join(f"{_label(name)}: {_said(value)}" for name, value in values.items())
            self._show(self._text(f"{part}: {said}", "dim"))

    def _table(self, figures: list[dict[str, Any]]) -> None:
        from rich import box
        from rich.table import Table

        has_band = any(figure["band"] is not None for figure in figures)
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1)
        )
        headers = _HEADERS if has_band else _HEADERS[:-1]
        for header in headers:
            is_left = header in ("metric", "statistic")
            table.add_column(header, justify="left" if is_left else "right", overflow="fold")
        before = ""
        for figure in figures:
            error = error_cell(figure["error"])
            metric = _metric(figure["metric"])
            cells = [
                self._text(metric if metric != before else ""),
                self._text("" if figure["statistic"] == "value" else figure["statistic"]),
                *(self._text(_quantity(figure[s], figure["unit"])) for s in _HEADERS[2:4]),
                self._text(error.text, _TONES[error.tone]),
                self._text(_band(figure), "dim"),
            ]
            table.add_row(*cells[: len(headers)])
            before = metric
        self._show(table)

    def _text(self, text: str, style: str = "") -> Text:
        from rich.text import Text

        if self._ascii_only:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(text, style=style)

    def _show(self, item: RenderableType) -> None:
        self._console.print(item, width=self._width, highlight=False, markup=False)


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
