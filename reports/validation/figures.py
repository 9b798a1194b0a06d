"""Figures of a validation: predicted against measured, for steps, latencies and percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.numbers import LATENCY_LABELS, duration, is_number, percent
from reports.series import distribution
from reports.svg import Plot, Sheet
from reports.validation.errors import PERCENTILES, Content, run_names
from sim.books.metrics import LATENCIES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_BAND = 0.1  # drawn around the diagonal
_SHARES = ([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])


def percentile_errors(content: Content, sheet: Sheet) -> Plot | None:
    """Draw the errors of p50, p90 and p99 of each latency, one row per run; None without serving
    runs."""
    runs = run_names(content)
    if not runs:
        return None
    said = []
    height = 0.95 + 0.27 * len(runs)
    with sheet.drawing(3 * height - 0.8 if sheet.is_narrow else height) as figure:
        panels = sheet.panels(figure, len(LATENCIES), sharey=True)
        figure.set_layout_engine("constrained", wspace=0.05)
        for axes, metric in zip(panels, LATENCIES, strict=True):
            errors = [_errors(content, run, metric) for run in runs]
            _draw_errors(axes, metric, errors)
            worst = max((abs(e) for row in errors for e in row.values()), default=0.0)
            said.append(f"{LATENCY_LABELS[metric]}: at most {worst:.0%} off.")
        panels[0].set_yticks(range(len(runs)), runs)
        panels[0].invert_yaxis()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=len(PERCENTILES))
        alt = f"Errors of latency percentiles of {len(runs)} runs. {' '.join(said)}"
        caption = (
            "Predicted less measured, relative to measured; left of the line is predicted too "
            "fast. Shaded: within 10%, what two runs of the real engine differ by at p99."
        )
        title = "Errors of the latency percentiles"
        return sheet.plot(figure, "percentile-errors", title, alt, caption)


def latency_distributions(content: Content, latencies: pd.DataFrame, sheet: Sheet) -> Plot | None:
    """Draw the share of requests within a latency, predicted and measured, one row per run."""
    runs = [run for run in run_names(content) if (latencies["run"] == run).any()]
    if not runs:
        return None
    columns = 1 if sheet.is_narrow else len(LATENCIES)
    rows = len(runs) * len(LATENCIES) // columns
    with sheet.drawing(0.45 + 1.5 * rows) as figure:
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        said = []
        pairs = ((run, metric) for run in runs for metric in LATENCIES)
        for axes, (run, metric) in zip(panels, pairs, strict=True):
            chosen = (latencies["run"] == run) & (latencies["metric"] == metric)
            said += _draw_pair(axes, f"{run}  {LATENCY_LABELS[metric]}", latencies[chosen])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2)
        alt = f"Distributions of latencies by their medians. {' '.join(said)}"
        caption = (
            "Share of requests at or below a latency, as measured on the real engine and as "
            "predicted from the arrivals alone. Logarithmic scale."
        )
        title = "Latency distributions, predicted and measured"
        return sheet.plot(figure, "validation-distributions", title, alt, caption)


def steps_scatter(content: Content, sheet: Sheet) -> Plot | None:
    """Draw predicted against measured time of each controlled step, one panel per kind."""
    points = content["step_points"]
    if not points:
        return None
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    keys = list(dict.fromkeys(point["key"] for point in points))
    columns = 1 if sheet.is_narrow else min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    said = []
    with sheet.drawing(0.35 + 2.75 * rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, kind in zip(panels, kinds, strict=False):
            said.append(_draw_kind(axes, kind, [p for p in points if p["kind"] == kind], keys))
        for axes in panels[len(kinds) :]:
            axes.set_axis_off()
        many = 2 if sheet.is_narrow else len(keys) + 2
        figure.legend(handles=_scatter_legend(keys), loc="outside upper right", ncols=many)
        alt = (
            f"Predicted against measured time of {len(points)} controlled steps, errors by kind: "
            f"{', '.join(said)}."
        )
        caption = (
            "Each point is one batch composition run alone on the engine. On the diagonal the "
            "prediction is exact; shaded, within 10%. Hollow: the half of the points set aside to "
            "judge a fit. Logarithmic scales."
        )
        title = "Controlled steps, predicted against measured"
        return sheet.plot(figure, "steps-scatter", title, alt, caption)


def _errors(content: Content, run: str, metric: str) -> dict[str, float]:
    return {
        f["statistic"]: f["error"]
        for f in content["figures"]
        if f["run"] == run
        and f["metric"] == metric
        and f["statistic"] in PERCENTILES
        and is_number(f["error"])
    }


def _draw_errors(axes: Axes, metric: str, errors: list[dict[str, float]]) -> None:
    axes.axvspan(-_BAND, _BAND, color=svg.BLUE, alpha=0.08, lw=0)
    axes.axvline(0, color=svg.MUTED, lw=0.8)
    styles = zip(PERCENTILES, ("o", "D", "s"), (svg.BLUE, svg.VIOLET, svg.VERMILION), strict=True)
    for row, of_run in enumerate(errors):
        if of_run:
            ends = min(of_run.values()), max(of_run.values())
            axes.plot(ends, (row, row), color=svg.SILVER, lw=2, zorder=1)
    for name, marker, color in styles:
        known = [(of_run[name], row) for row, of_run in enumerate(errors) if name in of_run]
        if known:
            axes.plot(*zip(*known, strict=True), marker, ms=4.5, color=color, label=name)
    sizes = [abs(error) for of_run in errors for error in of_run.values()]
    limit = max(0.15, 1.15 * max(sizes, default=0.0))
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-0.6, len(errors) - 0.4)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0%}" if value else "0")
    axes.set_title(LATENCY_LABELS[metric])


def _draw_pair(axes: Axes, title: str, sample: pd.DataFrame) -> list[str]:
    """Draw what was measured and what was predicted, and return what it shows."""
    sides = {side: svg.positive(sample[side].to_numpy(float)) for side in ("measured", "predicted")}
    shown = np.concatenate(list(sides.values()))
    if not len(shown):
        axes.set_axis_off()
        return []
    styles = {"measured": (svg.INK, 1.1, (0, (4, 2))), "predicted": (svg.BLUE, 1.7, "-")}
    for side, values_s in sides.items():
        x_s, share = distribution(values_s, 120)
        color, width, dashes = styles[side]
        axes.step(x_s, share, where="post", color=color, lw=width, ls=dashes, label=side)
    low_s, high_s = np.quantile(shown, (0.002, 1.0))
    svg.duration_axis(axes, float(low_s), float(high_s))
    axes.set_ylim(0, 1.04)
    axes.set_yticks(*_SHARES)
    axes.set_title(title)
    middle = (f"{side} {duration(np.median(values))}" for side, values in sides.items())
    return [f"{title}: {', '.join(middle)}."]


def _draw_kind(axes: Axes, kind: str, points: list[dict[str, Any]], keys: list[str]) -> str:
    times_s = _column(points, "measured_ms") / 1e3, _column(points, "predicted_ms") / 1e3
    low_s, high_s = min(map(np.min, times_s)), max(map(np.max, times_s))
    svg.duration_axis(axes, float(low_s), float(high_s))
    svg.duration_axis(axes, float(low_s), float(high_s), vertical=True)
    line = np.array([low_s / 2, high_s * 2])
    axes.fill_between(line, line * (1 - _BAND), line * (1 + _BAND), color=svg.BLUE, alpha=0.1, lw=0)
    axes.plot(line, line, color=svg.MUTED, lw=0.8)
    for key, color in zip(keys, _cycled(keys), strict=True):
        for held_out in (False, True):
            chosen = [p for p in points if p["key"] == key and p["held_out"] is held_out]
            if chosen:
                axes.plot(
                    _column(chosen, "measured_ms") / 1e3,
                    _column(chosen, "predicted_ms") / 1e3,
                    "o",
                    ms=4,
                    mew=1,
                    color=color,
                    mfc="none" if held_out else color,
                )
    axes.set_aspect("equal")
    median = float(np.median(np.abs(_column(points, "error"))))
    axes.set_title(kind)
    axes.set_title(f"median {percent(median)}", loc="right", fontsize=8.5, fontweight="normal")
    axes.set_xlabel("measured")
    axes.set_ylabel("predicted")
    return f"{kind} {percent(median)}"


def _scatter_legend(keys: list[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", ls="", ms=5, color=color, label=key)
        for key, color in zip(keys, _cycled(keys), strict=True)
    ]
    for label, face in (("fit half", svg.MUTED), ("held out", "none")):
        handles.append(
            Line2D([], [], marker="o", ls="", ms=5, color=svg.MUTED, mfc=face, label=label)
        )
    return handles


def _cycled(keys: list[str]) -> list[str]:
    return [svg.SERIES[i % len(svg.SERIES)] for i in range(len(keys))]


def _column(points: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([point[name] for point in points], float)
