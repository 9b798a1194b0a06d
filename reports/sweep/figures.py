"""Figures of a sweep: lines and points over one or two of its axes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reports import svg
from reports.numbers import is_number, target
from reports.svg import Plot, Sheet
from reports.sweep.facts import axis_keys, half_widths, kept_points, over_others, same
from reports.sweep.folder import Content
from reports.sweep.heatmap import draw_heatmap
from reports.sweep.plots import PlotSpec, is_decided, others_text, panels_of, plot_title
from reports.sweep.words import (
    Scale,
    axis_title,
    axis_value,
    better_of,
    figure_label,
    money_scale,
    unit_of,
    value_text,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_WIDE = 30
"""Ratio of the largest to the least value from which a scale is logarithmic."""
_MOST_TICKS = 8
_MOST_LETTERS = 30
"""Most letters of the names below a narrow panel that stand upright."""


def scale_x(axes: Axes, content: Content, key: str, cells: list[Any], sheet: Sheet) -> None:
    """Place numbers by value (on a logarithmic scale if they span far) and names side by side."""
    axes.set_xlabel(axis_title(key, axis_keys(content), unit=True))
    if not all(is_number(cell) for cell in cells):
        names = [axis_value(cell)[:22] for cell in cells]
        is_long = sheet.is_narrow and sum(map(len, names)) > _MOST_LETTERS
        turned: Any = {"rotation": 30, "ha": "right"} if is_long else {}
        axes.set_xticks(range(len(cells)), names, **turned)
        axes.set_xlim(-0.4, len(cells) - 0.6)
        return
    known = sorted({float(cell) for cell in cells})
    if len(known) > 2 and known[0] > 0 and known[-1] / known[0] >= _WIDE:
        svg.log_axis(axes, known[0] / 1.1, known[-1] * 1.1, lambda value: f"{value:,.6g}")
    elif len(known) <= (_MOST_TICKS // 2 if sheet.is_narrow else _MOST_TICKS):
        axes.set_xticks(known, [axis_value(value) for value in known])


def scale_y(axes: Axes, content: Content, column: str, values: Any, scale: Scale) -> None:
    """Scale latencies and wide-ranging costs logarithmically, shares in percent, and the rest
    from 0."""
    from matplotlib.ticker import FuncFormatter

    unit, aim = unit_of(content, column), target_of(content, column)
    low, high = float(values.min(initial=float("inf"))), float(values.max(initial=0.0))
    if unit == "s" and low > 0:
        svg.duration_axis(axes, min(low, aim or low), max(high, aim or high), vertical=True)
    elif unit == "fraction":
        axes.set_ylim(-0.02, max(1.04, high * 1.05))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    elif better_of(content, column) == "lower" and low > 0 and high / low >= _WIDE:
        ends = low * scale.factor / 1.2, high * scale.factor * 1.2
        svg.log_axis(axes, *ends, lambda value: f"{value:,.6g}", vertical=True)
        axes.set_ylabel(scale.unit)
    else:
        axes.set_ylim(0, high * scale.factor * 1.06 or None)
        axes.set_ylabel(scale.unit)
    if aim is not None:
        axes.axhline(aim, color=svg.MUTED, lw=1.0, ls=(0, (4, 3)))


def target_of(content: Content, column: str) -> float | None:
    """Return the SLO's target of a latency, or the share that the requirement asks for; None if
    there is neither."""
    first = column.partition(".")[0]
    if first in ("ttft", "tpot", "e2e"):
        aim: float | None = content["slo"].get(f"{first}_s")
        return aim
    required = (content["choice"] or {}).get("require") or ""
    found = re.search(rf"(?:^|\s){re.escape(column)}\s*>=?\s*([\d.]+)", required)
    return float(found[1]) if found else None


_MARKS = ("o", "s", "^", "D", "v", "P")
_A_ROW = 2


class _Look(NamedTuple):
    """Style of the line for one value of an axis."""

    color: str
    mark: str
    label: str


def draw(
    content: Content,
    table: pd.DataFrame,
    points: pd.DataFrame,
    spec: PlotSpec,
    name: str,
    sheet: Sheet,
) -> Plot | None:
    """Draw a figure; None if it has no data."""
    if spec.kind == "heatmap":
        return draw_heatmap(content, points, spec, name, sheet)
    return draw_lines(content, table, points, spec, name, sheet)


def draw_lines(
    content: Content,
    table: pd.DataFrame,
    points: pd.DataFrame,
    spec: PlotSpec,
    name: str,
    sheet: Sheet,
) -> Plot | None:
    """Draw one panel per figure or per value of the facet, with one line per value of ``by``."""
    panels = [panel for panel in panels_of(points, spec) if panel[2][panel[0]].notna().any()]
    if not panels:
        return None
    keys = axis_keys(content)
    columns = 1 if sheet.is_narrow else min(_A_ROW, len(panels))
    rows_of_panels = -(-len(panels) // columns)
    with sheet.drawing(0.5 + 2.5 * rows_of_panels) as figure:
        grid = figure.subplots(rows_of_panels, columns, squeeze=False).ravel()
        figure.set_layout_engine("constrained", wspace=0.06, hspace=0.08)
        for axes, (column, value, rows) in zip(grid, panels, strict=False):
            _draw_panel(axes, content, table, rows, spec, column)
            scale_x(axes, content, spec.x, list(dict.fromkeys(rows[spec.x])), sheet)
            # Panels of one figure are compared, so they share one scale.
            values = points[column].dropna().to_numpy(float)
            scale_y(axes, content, column, values, money_scale(content, column, points[column]))
            title = f"{axis_title(str(spec.facet), keys)} {value}"
            axes.set_title(figure_label(column) if value is None else title)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        handles, labels = grid[0].get_legend_handles_labels()
        if len(labels) > 1:
            title = axis_title(str(spec.by), keys)
            columns = min(len(labels), 2 if sheet.is_narrow else 6)
            figure.legend(handles, labels, title=title, loc="outside lower left", ncols=columns)
        texts = plot_title(content, spec), _alt(content, points, spec)
        return sheet.plot(figure, name, *texts, _caption(content, points, spec))


def _draw_panel(
    axes: Axes,
    content: Content,
    table: pd.DataFrame,
    points: pd.DataFrame,
    spec: PlotSpec,
    column: str,
) -> None:
    places = {axis_value(v): place for place, v in enumerate(dict.fromkeys(points[spec.x]))}
    factor = money_scale(content, column, points[column]).factor
    half = half_widths(table, column) if content["replications"] > 1 else None
    values: list[Any] = [None] if spec.by is None else list(dict.fromkeys(points[spec.by]))
    for index, value in enumerate(values):
        rows = points if spec.by is None else points[[same(v, value) for v in points[spec.by]]]
        label = "" if spec.by is None else axis_value(value)
        look = _Look(svg.SERIES[index % 6], _MARKS[index % 6], label)
        kept = rows
        if is_decided(content, column):
            kept = rows.loc[[point for point in kept_points(content) if point in rows.index]]
        if spec.kind == "points":
            _draw_points(axes, rows, kept, spec.x, column, look, factor)
            continue
        if len(kept) < len(rows):
            xs, ys = _line(content, rows, spec.x, column, places)
            axes.plot(xs, ys * factor, ":", color=look.color, lw=1.2, alpha=0.5)
        xs, ys = _line(content, kept, spec.x, column, places)
        style: dict[str, Any] = {"color": look.color, "marker": look.mark, "ms": 3.5, "lw": 1.5}
        axes.plot(xs, ys * factor, label=look.label, **style)
        if half is not None and len(xs) == len(kept):
            spread = half.reindex(kept.index).fillna(0.0).to_numpy(float) * factor
            xs, ys = _places(kept[spec.x], places), kept[column].to_numpy(float) * factor
            axes.errorbar(xs, ys, spread, color=look.color, fmt="none", capsize=2, lw=0.9)


def _draw_points(
    axes: Axes,
    rows: pd.DataFrame,
    kept: pd.DataFrame,
    x: str,
    column: str,
    look: _Look,
    factor: float,
) -> None:
    if len(kept) < len(rows):
        axes.plot(rows[x], rows[column] * factor, look.mark, ms=3, color=look.color, alpha=0.2)
    style: dict[str, Any] = {"ms": 3.5, "color": look.color, "alpha": 0.8, "label": look.label}
    axes.plot(kept[x], kept[column] * factor, look.mark, **style)


def _line(
    content: Content, rows: pd.DataFrame, x: str, column: str, places: dict[str, int]
) -> tuple[Any, Any]:
    """Return a figure over an axis, with the best over all other axes at each place."""
    line = over_others(content, rows, column, [x])
    xs = _places(line[x], places)
    order = np.argsort(xs, kind="stable")
    return xs[order], line[column].to_numpy(float)[order]


def _places(cells: pd.Series[Any], places: dict[str, int]) -> Any:
    """Return the positions on an axis: the values of numbers, and consecutive places for
    anything else."""
    if cells.dtype.kind in "if":
        return cells.to_numpy(float)
    return np.array([places[axis_value(value)] for value in cells], dtype=float)


def _caption(content: Content, points: pd.DataFrame, spec: PlotSpec) -> str:
    sentences = [others_text(content, points, spec)]
    if any(is_decided(content, column) for column in spec.figures):
        pale = "pale marks" if spec.kind == "points" else "dotted lines"
        sentences.append(f"Of what decides, {pale} ask nothing of the SLO; the others keep it.")
    aims = []
    for column in spec.figures:
        aim = target_of(content, column)
        if aim is not None:
            is_time = unit_of(content, column) == "s"
            aims.append(f"{figure_label(column)} {target(aim) if is_time else f'{aim:.4g}'}")
    sentences.append(f"Dashed: what is aimed at ({', '.join(aims)})." if aims else "")
    if content["replications"] > 1 and spec.kind == "lines":
        sentences.append(
            f"Means over {content['replications']} seeds; bars, where every point is shown, are "
            "95% intervals."
        )
    if spec.kind == "points":
        sentences.append("Each mark is a point.")
    return " ".join(sentence for sentence in sentences if sentence)


def _alt(content: Content, points: pd.DataFrame, spec: PlotSpec) -> str:
    said = []
    for column in spec.figures:
        known = points[column].dropna()
        if len(known):
            low, high = (value_text(content, column, v) for v in (known.min(), known.max()))
            said.append(f"{figure_label(column)} from {low} to {high}.")
    return " ".join(said)
