"""Figures of a calibration: roofline of all points, efficiency over shapes, held-out errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reports.calibration.text import formats_of, name_of, plain, shape_text
from reports.explain.text import PEAK_NAMES, amount
from reports.numbers import percent, whole_percent
from reports.svg import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    VIOLET,
    WIDTH_IN,
    YELLOW,
    Plot,
    drawing,
    log_axis,
    render,
)

_COLORS = (BLUE, VERMILION, GREEN, ORANGE, VIOLET, SKY, PINK, YELLOW, MUTED)
_LINES = 8  # most curves of a table in one plot
_CELLS = 40  # rows up to which a heat map grows in height


def roofline_plot(facts: Mapping[str, Any]) -> Plot | None:
    """Draw all points of the tables that compute, under the device's roofs."""
    tables = [table for table in facts["tables"] if _computes(table)]
    if not tables:
        return None
    device = facts["device"]
    bandwidth, peaks = device["hbm_bytes_per_s"], device["peaks_flop_per_s"]
    by_family: dict[str, list[tuple[float, float]]] = {}
    for table in tables:
        points = by_family.setdefault(table["family"], [])
        for curve in table["curves"]:
            rows = zip(curve["flops"], curve["bytes"], curve["seconds"], strict=True)
            points += [(f / b, f / s) for f, b, s in rows if f and b]
    everything = np.array([point for points in by_family.values() for point in points])
    low_x, high_x = everything[:, 0].min() / 1.5, everything[:, 0].max() * 2
    low_y, top = everything[:, 1].min() / 1.5, 2.5 * max(peaks.values())
    with drawing(WIDTH_IN, 4.4) as figure:
        axes = figure.subplots()
        log_axis(axes, low_x, high_x, lambda value: f"{value:,g}")
        log_axis(axes, low_y, top, lambda value: f"{amount(value)}FLOP/s", vertical=True)
        for color, (family, points) in zip(_COLORS * 3, by_family.items(), strict=False):
            x, y = np.array(points).T
            axes.scatter(x, y, s=7, color=color, alpha=0.55, edgecolor="none", label=family)
        slope = np.array([low_x, max(peaks.values()) / bandwidth])
        axes.plot(slope, slope * bandwidth, color=INK, lw=1)
        drawn: set[float] = set()
        for peak, height in peaks.items():
            if height in drawn:
                continue
            drawn.add(height)
            axes.plot([height / bandwidth, high_x], [height, height], color=INK, lw=1)
            axes.annotate(
                PEAK_NAMES[peak],
                (high_x, height),
                (-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=MUTED,
            )
        axes.set_xlabel("FLOPs a byte of device memory")
        axes.legend(loc="lower right", markerscale=2.5, ncols=2)
        svg = render(figure, "roofline", f"Roofline of all measured points of {facts['name']}")
    return Plot(
        "roofline",
        "Roofline of all points",
        svg,
        "A point is a kernel at one shape; lines are the datasheet's bandwidth and peaks. Bytes "
        "are the fewest that a kernel must move, so a cache can lift a point above a line.",
    )


def table_plot(facts: Mapping[str, Any], table: Mapping[str, Any], place: int) -> Plot | None:
    """Draw the share of the roofline bound over the shapes of one table; None for launch tables."""
    if table["family"] == "launch" or table["points"] < 3:
        return None
    name = f"table-{place}"
    axes = [key for key, values in _axes(table).items() if len(values) > 1]
    title = f"{name_of(table)}, {table['kernel']} {formats_of(table)}"
    if len(axes) >= 2 and table["points"] >= 9:
        return _heat_map(table, name, title, axes)
    return _lines(table, name, title)


def held_out_plot(facts: Mapping[str, Any]) -> Plot | None:
    """Draw the median and 90th percentile of the held-out errors, one row per table."""
    tables = [t for t in facts["tables"] if t["held_out"] and t["held_out"]["median"] is not None]
    if not tables:
        return None
    names = [f"{name_of(t)} ({t['kernel']} {formats_of(t)})" for t in tables]
    places = np.arange(len(tables))[::-1]
    medians = np.array([t["held_out"]["median"] for t in tables])
    p90s = np.array([t["held_out"]["p90"] for t in tables])
    with drawing(WIDTH_IN, 0.7 + 0.19 * len(tables)) as figure:
        axes = figure.subplots()
        axes.hlines(places, medians, p90s, color=SKY, lw=3)
        axes.plot(medians, places, "o", ms=4, color=BLUE, label="median")
        axes.plot(p90s, places, "|", ms=7, color=BLUE, label="90th percentile")
        axes.set_yticks(places, names, fontsize=7.5)
        axes.set_xlim(0, min(1.0, 1.1 * p90s.max()))
        axes.xaxis.set_major_formatter(lambda value, _: percent(float(value)))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower right")
        svg = render(figure, "held-out", "Held-out errors of every table")
    return Plot(
        "held-out",
        "Held-out errors",
        svg,
        "Relative error at a fifth of the shapes, predicted by a table of the other four fifths; "
        "shapes outside their range do not count.",
    )


def _bytes(value: float) -> str:
    return f"{amount(value)}B"


def _computes(table: Mapping[str, Any]) -> bool:
    return any(flops for curve in table["curves"] for flops in curve["flops"])


def _axes(table: Mapping[str, Any]) -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for curve in table["curves"]:
        for name, values in curve["axes"].items():
            found.setdefault(name, set()).update(values)
    return found


def _heat_map(table: Mapping[str, Any], name: str, title: str, axes: Sequence[str]) -> Plot:
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
    with drawing(WIDTH_IN, 1.1 + 0.24 * min(len(y), _CELLS)) as figure:
        plot = figure.subplots()
        plot.grid(visible=False)
        image = plot.imshow(grid, origin="lower", aspect="auto", cmap="viridis", vmin=0)
        plot.set_xticks(range(len(x)), [plain(v) for v in x], rotation=45, ha="right")
        plot.set_yticks(range(len(y)), [plain(v) for v in y])
        for row in range(len(y)):
            for column in range(len(x)):
                if np.isfinite(grid[row, column]) and len(x) <= 16:
                    bright = grid[row, column] > 0.6 * np.nanmax(grid)
                    plot.annotate(
                        whole_percent(float(grid[row, column])),
                        (column, row),
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="#000000" if bright else "#ffffff",
                    )
        plot.set_xlabel(across.replace("_", " "))
        plot.set_ylabel(up.replace("_", " "))
        bar = figure.colorbar(image, ax=plot, fraction=0.03, pad=0.01)
        bar.ax.yaxis.set_major_formatter(lambda value, _: whole_percent(float(value)))
        svg = render(figure, name, f"Share of the bound: {title}")
    fixed = shape_text({**curve["at"], **others})
    caption = f"Share of the roofline's bound at {fixed}." if fixed else "Share of the bound."
    return Plot(name, title, svg, caption)


def _lines(table: Mapping[str, Any], name: str, title: str) -> Plot:
    """Draw one line per curve over its longest axis. If there are too many curves, draw an even
    selection."""
    curves = table["curves"]
    step = max(1, -(-len(curves) // _LINES))
    shown = curves[::step]
    axis = max(_axes(table), key=lambda key: len(_axes(table)[key]))
    values = sorted(_axes(table)[axis])
    write = _bytes if axis == "bytes" else plain
    with drawing(WIDTH_IN, 2.6) as figure:
        axes = figure.subplots()
        log_axis(axes, max(values[0], 0.5) / 1.2, values[-1] * 1.2, write)
        for color, curve in zip(_COLORS, shown, strict=False):
            x, y = np.array(curve["axes"][axis]), np.array(curve["share"])
            label = shape_text(curve["at"]) or None
            axes.plot(x, y, marker="o", ms=2.5, lw=1, color=color, label=label)
        top = max(share for curve in shown for share in curve["share"])
        axes.set_ylim(0, max(1.15 * top, 0.01))
        axes.yaxis.set_major_formatter(lambda value, _: whole_percent(float(value)))
        axes.set_xlabel(axis)
        if any(curve["at"] for curve in shown):
            axes.legend(fontsize=7, ncols=2)
        svg = render(figure, name, f"Share of the bound: {title}")
    among = f" {len(shown)} of {len(curves)} curves." if len(shown) < len(curves) else ""
    return Plot(name, title, svg, f"Share of the roofline's bound.{among}")
