"""The axes of a sweep's panels: scales, ticks, targets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.sweep.facts import axis_keys
from reports.sweep.folder import Content
from reports.sweep.words import Scale, axis_title, axis_value, better_of, unit_of
from reports.words import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 30
"""Largest over least value, from which a scale is logarithmic."""
_MOST_TICKS = 8


def scale_x(axes: Axes, content: Content, key: str, cells: list[Any]) -> None:
    """Numbers at themselves (in equal ratios where they span far), names side by side."""
    axes.set_xlabel(axis_title(key, axis_keys(content), unit=True))
    if not all(is_number(cell) for cell in cells):
        axes.set_xticks(range(len(cells)), [axis_value(cell)[:22] for cell in cells])
        axes.set_xlim(-0.4, len(cells) - 0.6)
        return
    known = sorted({float(cell) for cell in cells})
    if len(known) > 2 and known[0] > 0 and known[-1] / known[0] >= _WIDE:
        svg.log_axis(axes, known[0] / 1.1, known[-1] * 1.1, lambda value: f"{value:,.6g}")
    elif len(known) <= _MOST_TICKS:
        axes.set_xticks(known, [axis_value(value) for value in known])


def scale_y(axes: Axes, content: Content, column: str, values: Any, scale: Scale) -> None:
    """Latencies, and costs that span far, logarithmic; shares in percent; the rest from 0."""
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
    """The SLO's target of a latency, or the share that is required to meet it."""
    first = column.partition(".")[0]
    if first in ("ttft", "tpot", "e2e"):
        aim: float | None = content["slo"].get(f"{first}_s")
        return aim
    required = (content["choice"] or {}).get("require") or ""
    found = re.search(rf"(?:^|\s){re.escape(column)}\s*>=?\s*([\d.]+)", required)
    return float(found[1]) if found else None
