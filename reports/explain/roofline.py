"""Roofline of one step: its operators under the roofs of the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from reports import svg
from reports.numbers import MISSING, duration, significant
from reports.svg import Plot, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PEAK_NAMES = {
    "bf16_flop_per_s": "bf16",
    "fp8_flop_per_s": "fp8",
    "int8_op_per_s": "int8",
    "fp4_flop_per_s": "fp4",
    "int4_op_per_s": "int4",
}
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_COLORS = {
    "compute": svg.VERMILION,
    "memory": svg.BLUE,
    "launch": svg.GRAY,
    "network": svg.ORANGE,
}
# Operators with a smaller share of the step's time are drawn without a name.
_NAMED = 0.03
# Most names that fit above each other in the height of the plot.
_NAMES_HIGH = 24


def amount(value: float) -> str:
    """Write a number of FLOPs or bytes with a decimal prefix, as in 68.7 G, or a dash for zero."""
    if not value:
        return MISSING
    for prefix, size in _PREFIXES:
        if value >= size:
            return f"{significant(value / size)} {prefix}"
    return significant(value)


def roofline(facts: Mapping[str, Any], sheet: Sheet) -> Plot | None:
    """Draw the operators as points under the roofs of the device; None if no operator computes."""
    rows = [row for row in facts["operators"] if row["intensity"] and row["flops"]]
    if not rows:
        return None
    speeds = [row["flops"] / row["seconds"] for row in rows]
    ridges, bytes_per_s = facts["ridge_flops_per_byte"], facts["hbm_bytes_per_s"]
    low_x = min(0.5, min(row["intensity"] for row in rows) / 1.5)
    high_x = 3 * max(*ridges.values(), *(row["intensity"] for row in rows))
    top = 2.5 * max(facts["peaks_flop_per_s"].values())
    low_y = min(*speeds, low_x * bytes_per_s) / 1.5
    with sheet.drawing(4.6 if sheet.is_narrow else 4.2) as figure:
        axes = figure.subplots()
        roof_axes(axes, (low_x, high_x), (low_y, top))
        draw_roofs(axes, facts["peaks_flop_per_s"], bytes_per_s, sheet)
        for bound, color in _COLORS.items():
            chosen = [(r, s) for r, s in zip(rows, speeds, strict=True) if r["bound"] == bound]
            if not chosen:
                continue
            axes.scatter(
                [row["intensity"] for row, _ in chosen],
                [speed for _, speed in chosen],
                s=[20 + 400 * row["share"] for row, _ in chosen],
                color=color,
                alpha=0.75,
                edgecolor="none",
                label=f"bound by {bound}",
            )
        said = _name_operators(axes, rows, speeds, sheet)
        if sheet.is_narrow:
            figure.legend(loc="outside lower left", ncols=2, markerscale=0.7)
        else:
            axes.legend(loc="lower right", markerscale=0.7)
        ridge = ", ".join(f"{PEAK_NAMES[peak]} {value:,.0f}" for peak, value in ridges.items())
        alt = (
            f"Operators of one step by FLOPs a byte and speed, ridge points at {ridge} FLOPs a "
            f"byte. {' '.join(said)}"
        )
        caption = (
            "Lines are what the datasheet allows, diamonds the ridge points; each point is an "
            "operator with all its calls, its area the share of the step's GPU time. What lies "
            "below the lines is lost to efficiency, launches and half-filled tiles. Operators that "
            "compute nothing (norms, copies, collectives) are in the table alone."
        )
        return sheet.plot(figure, "roofline", "Roofline", alt, caption)


def _name_operators(
    axes: Axes, rows: list[Mapping[str, Any]], speeds: list[float], sheet: Sheet
) -> list[str]:
    """Write the names of the longest operators beside their points, and return what they say.

    From the top down, a name is moved below the one above it if they would overlap.
    """
    (low_x, high_x), (low_y, top) = axes.get_xlim(), axes.get_ylim()
    span, below, said = np.log(top / low_y) / _NAMES_HIGH, np.inf, []
    for speed, row in sorted(zip(speeds, rows, strict=True), key=lambda pair: -pair[0]):
        if row["share"] < _NAMED:
            continue
        below = min(np.log(speed), below - span)
        text = f"{row['name']} {duration(row['seconds'])}"
        is_right = row["intensity"] > np.sqrt(low_x * high_x) and sheet.is_narrow
        axes.annotate(
            text,
            (row["intensity"], np.exp(below)),
            (-10 if is_right else 14, -3),
            textcoords="offset points",
            ha="right" if is_right else "left",
            fontsize=8,
            color=svg.VIOLET,
        )
        said.append(f"{text} at {amount(speed)}FLOP/s.")
    return said


def roof_axes(axes: Axes, x_ends: tuple[float, float], y_ends: tuple[float, float]) -> None:
    """Scale axes of FLOPs a byte and FLOP/s between limits."""
    svg.log_axis(axes, *x_ends, lambda value: f"{value:,g}")
    svg.log_axis(axes, *y_ends, lambda value: f"{amount(value)}FLOP/s", vertical=True)
    axes.set_xlabel("FLOPs a byte of device memory")


def draw_roofs(axes: Axes, peaks: Mapping[str, float], bytes_per_s: float, sheet: Sheet) -> None:
    """Draw the bandwidth as a slope and each peak as a roof that begins at its ridge point, in
    scaled axes."""
    low_x, high_x = axes.get_xlim()
    for height in sorted(set(peaks.values())):
        ridge = height / bytes_per_s
        words = " and ".join(PEAK_NAMES[name] for name, peak in peaks.items() if peak == height)
        axes.plot([ridge, high_x], [height, height], color=svg.INK, lw=1)
        axes.plot([ridge], [height], marker="D", ms=4, color=svg.INK, ls="none")
        axes.annotate(
            words if sheet.is_narrow else f"{words}, ridge at {ridge:,.0f}",
            (high_x, height),
            (-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=svg.MUTED,
        )
    slope = np.array([low_x, max(peaks.values()) / bytes_per_s])
    axes.plot(slope, slope * bytes_per_s, color=svg.INK, lw=1)
