"""Figures of a calibration: roofline of all points, efficiency over shapes, held-out errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from reports import svg
from reports.calibration.words import formats_of, name_of, plain, shape_text
from reports.explain.roofline import amount, draw_roofs, roof_axes
from reports.numbers import percent, whole_percent
from reports.svg import Plot, Sheet

_COLORS = (*svg.SERIES[:3], svg.ORANGE, svg.VIOLET, svg.SKY, svg.PINK, svg.YELLOW, svg.MUTED)
_LINES = 8  # most curves of a table in one plot
_CELLS = 40  # rows up to which a heat map grows in height
_LETTERS = 42  # longest line of a label
_SMALL = 0.05  # shares up to which an axis has decimals
_NUMBERS = 16  # most columns of a heat map with numbers, and half as many on a narrow sheet


def roofline(facts: Mapping[str, Any], sheet: Sheet) -> Plot | None:
    """Draw all points of the tables that compute, under the device's roofs."""
    by_family: dict[str, list[tuple[float, float]]] = {}
    for table in facts["tables"]:
        if not any(flops for curve in table["curves"] for flops in curve["flops"]):
            continue
        points = by_family.setdefault(table["family"], [])
        for curve in table["curves"]:
            rows = zip(curve["flops"], curve["bytes"], curve["seconds"], strict=True)
            points += [(f / b, f / s) for f, b, s in rows if f and b]
    if not by_family:
        return None
    peaks = facts["device"]["peaks_flop_per_s"]
    everything = np.array([point for points in by_family.values() for point in points])
    x_ends = everything[:, 0].min() / 1.5, everything[:, 0].max() * 2
    y_ends = everything[:, 1].min() / 1.5, 2.5 * max(peaks.values())
    with sheet.drawing(5.0 if sheet.is_narrow else 4.4) as figure:
        axes = figure.subplots()
        roof_axes(axes, x_ends, y_ends)
        for color, (family, points) in zip(_COLORS * 3, by_family.items(), strict=False):
            x, y = np.array(points).T
            axes.scatter(x, y, s=7, color=color, alpha=0.55, edgecolor="none", label=family)
        draw_roofs(axes, peaks, facts["device"]["hbm_bytes_per_s"], sheet)
        if sheet.is_narrow:
            figure.legend(loc="outside lower left", markerscale=2.5, ncols=2)
        else:
            axes.legend(loc="lower right", markerscale=2.5, ncols=2)
        fastest = (
            f"{family} up to {amount(max(speed for _, speed in points))}FLOP/s"
            for family, points in by_family.items()
        )
        alt = f"{len(everything):,} measured points of {facts['name']}: {', '.join(fastest)}."
        caption = (
            "A point is a kernel at one shape; lines are the datasheet's bandwidth and peaks. "
            "Bytes are the fewest that a kernel must move, so a cache can lift a point above a "
            "line."
        )
        return sheet.plot(figure, "roofline", "Roofline of all points", alt, caption)


def table_figure(table: Mapping[str, Any], place: int, sheet: Sheet) -> Plot | None:
    """Draw the share of the roofline bound over the shapes of one table; None for launch tables."""
    if table["family"] == "launch" or table["points"] < 3:
        return None
    name = f"table-{place}"
    axes = [key for key, values in _axes(table).items() if len(values) > 1]
    title = f"{name_of(table)}, {table['kernel']} {formats_of(table)}"
    if len(axes) >= 2 and table["points"] >= 9:
        return _heat_map(table, name, title, axes, sheet)
    return _lines(table, name, title, sheet)


def held_out_errors(tables: Sequence[Mapping[str, Any]], sheet: Sheet) -> Plot | None:
    """Draw the median and 90th percentile of the held-out errors, one row per table."""
    tables = [t for t in tables if t["held_out"] and t["held_out"]["median"] is not None]
    if not tables:
        return None
    names = [f"{name_of(t)} ({t['kernel']} {formats_of(t)})" for t in tables]
    places = np.arange(len(tables))[::-1]
    medians = np.array([t["held_out"]["median"] for t in tables])
    p90s = np.array([t["held_out"]["p90"] for t in tables])
    row_in = 0.36 if sheet.is_narrow else 0.19
    with sheet.drawing(0.8 + row_in * len(tables)) as figure:
        axes = figure.subplots()
        axes.hlines(places, medians, p90s, color=svg.SKY, lw=3)
        axes.plot(medians, places, "o", ms=4, color=svg.BLUE, label="median")
        axes.plot(p90s, places, "|", ms=7, color=svg.BLUE, label="90th percentile")
        if sheet.is_narrow:  # names stand above their rows
            axes.set_yticks(places, [])
            for place, name in zip(places, names, strict=True):
                axes.annotate(name, (0, place), (0, 4), textcoords="offset points", fontsize=8)
            axes.set_ylim(-0.5, len(tables) - 0.2)
        else:
            axes.set_yticks(places, names, fontsize=8)
            axes.set_ylim(-0.7, len(tables) - 0.3)
        axes.set_xlim(0, min(1.0, 1.1 * p90s.max()))
        axes.xaxis.set_major_formatter(lambda value, _: percent(float(value)))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper right", ncols=2)
        worst = int(np.argmax(medians))
        alt = (
            f"Held-out errors of {len(tables)} tables: medians up to {percent(medians[worst])} "
            f"({names[worst]}), 90th percentiles up to {percent(p90s.max())}."
        )
        caption = (
            "Relative error at a fifth of the shapes, predicted by a table of the other four "
            "fifths; shapes outside their range do not count."
        )
        return sheet.plot(figure, "held-out", "Held-out errors", alt, caption)


def _bytes(value: float) -> str:
    return f"{amount(value)}B"


def _axes(table: Mapping[str, Any]) -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for curve in table["curves"]:
        for name, values in curve["axes"].items():
            found.setdefault(name, set()).update(values)
    return found


def _heat_map(
    table: Mapping[str, Any], name: str, title: str, axes: Sequence[str], sheet: Sheet
) -> Plot:
    """Draw the curve with the most points over its two longest axes, with any further axis at
    its lowest value."""
    curve = max(table["curves"], key=lambda one: len(one["seconds"]))
    lengths = {axis: len(set(curve["axes"][axis])) for axis in axes}
    across, up = sorted(lengths, key=lambda axis: -lengths[axis])[:2]
    others = {axis: min(curve["axes"][axis]) for axis in curve["axes"] if axis not in (across, up)}
    columns = {axis: np.array(values) for axis, values in curve["axes"].items()}
    share = np.array(curve["share"])
    chosen = np.ones(len(share), np.bool_)
    for axis, value in others.items():
        chosen &= columns[axis] == value
    x, y = np.unique(columns[across][chosen]), np.unique(columns[up][chosen])
    grid = np.full((len(y), len(x)), np.nan)
    rows = np.searchsorted(y, columns[up][chosen]), np.searchsorted(x, columns[across][chosen])
    grid[rows] = share[chosen]
    most = _NUMBERS // 2 if sheet.is_narrow else _NUMBERS
    with sheet.drawing(1.1 + 0.24 * min(len(y), _CELLS)) as figure:
        plot = figure.subplots()
        plot.grid(visible=False)
        image = plot.imshow(grid, origin="lower", aspect="auto", cmap="viridis", vmin=0)
        # every second or third value where there are too many to write
        every = -(-len(x) // (10 if sheet.is_narrow else 30))
        places = range(0, len(x), every)
        plot.set_xticks(places, [plain(x[place]) for place in places], rotation=45, ha="right")
        every = -(-len(y) // _CELLS)
        places = range(0, len(y), every)
        plot.set_yticks(places, [plain(y[place]) for place in places])
        for row in range(len(y)):
            for column in range(len(x)):
                if np.isfinite(grid[row, column]) and len(x) <= most:
                    bright = grid[row, column] > 0.6 * np.nanmax(grid)
                    plot.annotate(
                        whole_percent(float(grid[row, column])),
                        (column, row),
                        ha="center",
                        va="center",
                        fontsize=8,
                        color="#000000" if bright else "#ffffff",
                    )
        plot.set_xlabel(across.replace("_", " "))
        plot.set_ylabel(up.replace("_", " "))
        bar = figure.colorbar(image, ax=plot, fraction=0.03, pad=0.01)
        bar.ax.yaxis.set_major_formatter(lambda value, _: whole_percent(float(value)))
        fixed = shape_text({**curve["at"], **others})
        caption = f"Share of the roofline's bound at {fixed}." if fixed else "Share of the bound."
        alt = (
            f"Share of the roofline's bound of {title} over {across} and {up}, from "
            f"{whole_percent(float(np.nanmin(grid)))} to {whole_percent(float(np.nanmax(grid)))}."
        )
        return sheet.plot(figure, name, title, alt, caption)


def _lines(table: Mapping[str, Any], name: str, title: str, sheet: Sheet) -> Plot:
    """Draw one line per curve over its longest axis. If there are too many curves, draw an even
    selection."""
    curves = table["curves"]
    step = max(1, -(-len(curves) // _LINES))
    shown = curves[::step]
    axis = max(_axes(table), key=lambda key: len(_axes(table)[key]))
    values = sorted(_axes(table)[axis])
    write = _bytes if axis == "bytes" else plain
    common = {
        key: value
        for key, value in shown[0]["at"].items()
        if all(curve["at"].get(key) == value for curve in shown)
    }
    apart = ({k: v for k, v in curve["at"].items() if k not in common} for curve in shown)
    labels = [fill(shape_text(shape), _LETTERS) for shape in apart]
    many = "\n".join(labels).count("\n") + 1 if sheet.is_narrow and any(labels) else 0
    with sheet.drawing(2.6 + 0.2 * many) as figure:
        axes = figure.subplots()
        svg.log_axis(axes, max(values[0], 0.5) / 1.2, values[-1] * 1.2, write)
        for color, curve, label in zip(_COLORS, shown, labels, strict=False):
            x, y = np.array(curve["axes"][axis]), np.array(curve["share"])
            axes.plot(x, y, marker="o", ms=2.5, lw=1, color=color, label=label or None)
        top = max(share for curve in shown for share in curve["share"])
        axes.set_ylim(0, max(1.15 * top, 0.01))
        written = whole_percent if top > _SMALL else percent
        axes.yaxis.set_major_formatter(lambda value, _: written(float(value)))
        axes.set_xlabel(axis)
        if any(labels):
            if sheet.is_narrow:
                figure.legend(loc="outside lower left", fontsize=8)
            else:
                axes.legend(fontsize=8, ncols=2)
        every = [share for curve in curves for share in curve["share"]]
        alt = (
            f"Share of the roofline's bound of {title} over {axis}, from "
            f"{percent(min(every))} to {percent(max(every))}."
        )
        fixed = f" at {shape_text(common)}" if common else ""
        among = f" {len(shown)} of {len(curves)} curves." if len(shown) < len(curves) else ""
        return sheet.plot(figure, name, title, alt, f"Share of the roofline's bound{fixed}.{among}")
