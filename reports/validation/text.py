"""Terminal text of a validation's accuracy: the answer first, then the tables behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from reports.numbers import LATENCY_LABELS, THROUGHPUT_LABELS, duration, humanised, number, percent
from reports.terminal import TONES, Screen
from reports.validation.facts import (
    GLANCE_COLUMNS,
    LOAD_COLUMNS,
    PERCENTILES,
    Cell,
    Content,
    block_rows,
    conformance_rows,
    error_cell,
    glance_rows,
    headline,
    latency_rows,
    load_rows,
    run_note,
    step_rows,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MAX_WIDTH = 110
_NARROW = 104  # below this width the measured value is left out, because the error implies it
_WRAPPED = ("columns that differ",)

_Value = str | Cell
_Error = TypeVar("_Error", str, Cell)


def print_validation(content: Content, console: Console | None = None) -> None:
    """Print the content of accuracy.json to a terminal, a file or a pipe.

    An output without color or Unicode gets plain text or ASCII.
    """
    from rich.console import Console

    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _MAX_WIDTH  # a file or a pipe has no width of its own
    screen = Screen(console, _MAX_WIDTH)
    screen.say(headline(content), "bold")
    _print_glance(screen, content)
    _print_runs(screen, content)
    _print_steps(screen, content)
    _print_conformance(screen, content)
    _print_table(
        screen,
        "KV blocks: the memory plan against what the engine allocated",
        ["engine", "predicted", "recorded", "error"],
        [[*names, error] for *names, error in block_rows(content)],
    )
    if content["warnings"]:
        screen.heading("Mind")
        for line in content["warnings"]:
            screen.say(f"! {line}", "yellow")
    screen.say("")
    for key, conditions in content["conditions"].items():
        screen.say(
            f"{key}: {conditions['engine']}, {conditions['model']} on {conditions['gpus']} x "
            f"{conditions['gpu']}; profile {conditions['profile']}, efficiency "
            f"{conditions['efficiency']}",
            "dim",
        )


def _print_glance(screen: Screen, content: Content) -> None:
    headers = ["regime", *(part for name in GLANCE_COLUMNS for part in (name, "worst"))]
    rows: list[list[_Value]] = [
        [row.regime, *(part for cell, worst in row.cells for part in (cell, worst))]
        for row in glance_rows(content)
    ]
    title = "Serving runs at a glance: median of the absolute errors, and the worst"
    _print_table(screen, title, headers, rows)


def _print_runs(screen: Screen, content: Content) -> None:
    headers = ["run", "metric", ""]
    headers += _triples(screen, [(name, "measured", "error") for name in PERCENTILES])
    rows: list[list[_Value]] = []
    before = ""
    for latency in latency_rows(content):
        run = latency.run if latency.run != before else ""
        rows.append([run, latency.metric, latency.unit, *_triples(screen, latency.triples)])
        before = latency.run
    title = "Latency of the serving runs, predicted from arrivals alone"
    _print_table(screen, title, headers, rows, left=("run", "metric", ""))
    for row in load_rows(content):
        note = run_note(content, row.run)
        if "stalled" in note:
            screen.say(f"{row.run}: {note}", "dim")
    headers = ["run", "regime", "load"]
    headers += _triples(screen, [(name, "meas.", "error") for *_, name in LOAD_COLUMNS])
    _print_table(
        screen,
        "Throughput and requests running; load is offered over saturation rate",
        headers,
        [[r.run, r.regime, r.load, *_triples(screen, r.triples)] for r in load_rows(content)],
        left=("run", "regime"),
    )


def _print_steps(screen: Screen, content: Content) -> None:
    rows: list[list[_Value]] = []
    for row in step_rows(content):
        errors = (row.median, row.p95, row.worst, row.bias)
        rows.append(
            [row.key, row.kind, f"{row.num_points}", *errors, row.held_out, row.held_out_median]
        )
    headers = ["engine", "kind", "n", "median", "p95", "worst", "bias"]
    _print_table(
        screen,
        "Controlled steps: absolute errors of the step time, and of the half set aside",
        [*headers, "set aside", "median"],
        rows,
        left=("engine", "kind"),
    )


def _print_conformance(screen: Screen, content: Content) -> None:
    _print_table(
        screen,
        "Scheduler, replayed on the recorded clock: share of steps composed as recorded",
        ["run", "steps", "equal", "prefix hits equal", "columns that differ"],
        conformance_rows(content),
        left=("run", "columns that differ"),
    )


def _print_table(
    screen: Screen,
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[_Value]],
    *,
    left: Sequence[str] = (),
) -> None:
    """Print a titled table, or nothing if there are no rows."""
    if not rows:
        return
    screen.heading(title)
    cells = [
        [v if isinstance(v, str) else screen.text(v.text, TONES[v.tone]) for v in row]
        for row in rows
    ]
    screen.table(headers, cells, left=left, wraps=_WRAPPED)


def _triples(screen: Screen, cells: Sequence[tuple[str, str, _Error]]) -> list[str | _Error]:
    """Return the cells of (predicted, measured, error), without measured if space is short."""
    parts: list[str | _Error] = []
    for predicted, measured, error in cells:
        parts += [predicted, error] if screen.width < _NARROW else [predicted, measured, error]
    return parts


_HEADERS = ("metric", "statistic", "predicted", "measured", "error", "band")


def print_accuracy(content: dict[str, Any], console: Console | None = None) -> None:
    """Print the JSON of a comparison to a terminal, a file or a pipe.

    An output without color or Unicode gets plain text or ASCII.
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
