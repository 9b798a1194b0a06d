"""Heat maps of a sweep: a figure over two axes as colored cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reports import svg
from reports.numbers import significant, whole_percent
from reports.svg import Plot, Sheet
from reports.sweep.facts import axis_keys, kept_points, over_others
from reports.sweep.folder import Content
from reports.sweep.plots import PlotSpec, is_decided, others_text, panels_of, plot_title
from reports.sweep.words import (
    Scale,
    axis_title,
    axis_value,
    better_of,
    figure_label,
    scale_of,
    unit_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MOST_NUMBERS = 130
"""Most cells in which numbers are still readable."""
_MOST_ACROSS = 8
"""Most columns of a narrow sheet in which numbers are still readable."""
_MOST_LETTERS = 30
"""Most letters of the names below a narrow map that stand upright."""
# Not svg.INK and PAPER, which a dark page inverts: cells keep their colors.
_DARK, _LIGHT = "#1f2328", "#fdfdfd"
_SHADES = ("#d9e8f5", "#a3cbe3", "#5fa3d0", "#2474b3", "#084a87")
_PALE = 0.28


def draw_heatmap(
    content: Content, points: pd.DataFrame, spec: PlotSpec, name: str, sheet: Sheet
) -> Plot | None:
    """Draw ``x`` across and ``by`` upwards, one panel per value of the facet; darker is better."""
    if spec.by is None:
        return None
    panels = [panel for panel in panels_of(points, spec) if panel[2][panel[0]].notna().any()]
    if not panels:
        return None
    column, keys = spec.figures[0], axis_keys(content)
    scale = scale_of(content, column, points[column])
    rows = len(_ordered(points[spec.by]))
    height = 0.4 + (0.75 + 0.3 * max(rows, 2)) * len(panels)
    with sheet.drawing(min(height, 11)) as figure:
        grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (_, value, chosen) in zip(grid, panels, strict=True):
            _draw_cells(axes, content, points, chosen, spec, scale, sheet)
            if value is not None:
                axes.set_title(f"{axis_title(str(spec.facet), keys)} {value}")
        grid[-1].set_xlabel(axis_title(spec.x, keys, unit=True))
        figure.supylabel(axis_title(spec.by, keys, unit=True), fontsize=9)
        ends = [_cell_text(content, column, v, scale) for v in points[column].agg(["min", "max"])]
        alt = f"{plot_title(content, spec)}: from {ends[0]} to {ends[1]} {scale.unit}."
        caption = _caption(content, points, spec, scale)
        return sheet.plot(figure, name, plot_title(content, spec), alt, caption)


def _caption(content: Content, points: pd.DataFrame, spec: PlotSpec, scale: Scale) -> str:
    column = spec.figures[0]
    unit = f" ({scale.unit})" if scale.unit and scale.unit != "fraction" else ""
    better = {"lower": "darker is lower, and better", "higher": "darker is higher, and better"}
    words = better.get(better_of(content, column) or "", "darker is higher")
    caption = f"{figure_label(column)}{unit}; {words}."
    if content["choice"] and content["choice"]["require"]:
        caption += f" Pale: no point there keeps {content['choice']['require']}."
    if points[column].isna().any() or len(points) < content["points"]:
        caption += " An empty cell has no point that ran to its end."
    return f"{caption} {others_text(content, points, spec)}".strip()


def _draw_cells(
    axes: Axes,
    content: Content,
    points: pd.DataFrame,
    rows: pd.DataFrame,
    spec: PlotSpec,
    scale: Scale,
    sheet: Sheet,
) -> None:
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.patches import Rectangle

    column, by = spec.figures[0], str(spec.by)
    xs, ys = _ordered(points[spec.x]), _ordered(points[by])
    kept = rows.loc[[point for point in kept_points(content) if point in rows.index]]
    good = {(axis_value(x), axis_value(y)) for x, y in zip(kept[spec.x], kept[by], strict=True)}
    required = bool(content["choice"] and content["choice"]["require"])
    every = points[column].dropna().to_numpy(float)
    is_log = every.min() > 0 and every.max() / every.min() > 20
    level = np.log if is_log else np.asarray
    norm = Normalize(float(level(every.min())), float(level(every.max())) + 1e-12)
    shades = _SHADES[::-1] if better_of(content, column) == "lower" else _SHADES
    colors = LinearSegmentedColormap.from_list("cells", shades)
    shows_numbers = len(xs) * len(ys) <= _MOST_NUMBERS
    if sheet.is_narrow:
        shows_numbers &= len(xs) <= _MOST_ACROSS
    cells = list(over_others(content, rows, column, [spec.x, by]).itertuples(index=False))
    if is_decided(content, column):  # where some points meet the requirement, the best of those
        cells += list(over_others(content, kept, column, [spec.x, by]).itertuples(index=False))
    values = {(axis_value(x), axis_value(y)): float(value) for x, y, value in cells}
    for (x, y), value in values.items():
        at, is_good = (xs.index(x), ys.index(y)), not required or (x, y) in good
        color = np.array(colors(norm(float(level(value))))[:3])
        if not is_good:
            color = 1 - _PALE * (1 - color)
        cell = Rectangle(at, 1, 1, facecolor=tuple(color), edgecolor=svg.PAPER, linewidth=1.2)
        axes.add_patch(cell)
        if shows_numbers:
            axes.text(
                at[0] + 0.5,
                at[1] + 0.5,
                _cell_text(content, column, value, scale),
                ha="center",
                va="center",
                fontsize=8,
                color=_LIGHT if color @ [0.2126, 0.7152, 0.0722] < 0.5 else _DARK,
                fontweight="bold" if is_good else "normal",
            )
    axes.set_xlim(0, len(xs))
    axes.set_ylim(0, len(ys))
    is_close = sheet.is_narrow and sum(map(len, xs)) > _MOST_LETTERS
    turned: Any = {"rotation": 45, "ha": "right"} if is_close else {}
    axes.set_xticks(np.arange(len(xs)) + 0.5, [x[:14] for x in xs], **turned)
    axes.set_yticks(np.arange(len(ys)) + 0.5, [y[: 14 if sheet.is_narrow else 28] for y in ys])
    axes.grid(visible=False)


def _ordered(cells: pd.Series[Any]) -> list[str]:
    """Sort numbers by size and keep anything else in order."""
    known = list(dict.fromkeys(cells.tolist()))
    if cells.dtype.kind in "if":
        known.sort()
    return [axis_value(value) for value in known]


def _cell_text(content: Content, column: str, value: float, scale: Scale) -> str:
    if unit_of(content, column) == "fraction":
        return whole_percent(value) if value < 0.995 or value == 1 else f"{value:.1%}"
    return significant(value * scale.factor)
