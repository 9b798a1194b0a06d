"""Figures of a validation: predicted against measured, for steps, latencies and percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.numbers import LATENCY_LABELS, is_number, percent
from reports.series import distribution
from reports.validation.facts import PERCENTILES, Content, run_names
from sim.books.metrics import LATENCIES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_BAND = 0.1  # drawn around the diagonal
_SHARES = ([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])


def draw_validation(content: Content, latencies: pd.DataFrame) -> dict[str, svg.Plot]:
    """Draw every figure that has data, by name, in the order of the page."""
    plots = (
        percentile_errors(content),
        latency_distributions(content, latencies),
        steps_scatter(content),
    )
    return {plot.name: plot for plot in plots if plot is not None}


def percentile_errors(content: Content) -> svg.Plot | None:
    """Draw the errors of p50, p90 and p99 of each latency, one row per run; None without serving
    runs."""
    runs = run_names(content)
    if not runs:
        return None
    said = []
    with svg.drawing(svg.WIDTH_IN, 0.95 + 0.27 * len(runs)) as figure:
        panels = figure.subplots(1, len(LATENCIES), sharey=True)
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
        text = svg.render(figure, "percentile-errors", alt)
    caption = (
        "Predicted less measured, relative to measured; left of the line is predicted too fast. "
        "Shaded: within 10%, what two runs of the real engine differ by at p99."
    )
    return svg.Plot("percentile-errors", "Errors of the latency percentiles", text, caption)


def latency_distributions(content: Content, latencies: pd.DataFrame) -> svg.Plot | None:
    """Draw the share of requests within a latency, predicted and measured, one row per run."""
    runs = [run for run in run_names(content) if (latencies["run"] == run).any()]
    if not runs:
        return None
    with svg.drawing(svg.WIDTH_IN, 0.45 + 1.5 * len(runs)) as figure:
        grid = figure.subplots(len(runs), len(LATENCIES), sharey=True, squeeze=False)
        for row, run in zip(grid, runs, strict=True):
            of_run = latencies[latencies["run"] == run]
            for axes, metric in zip(row, LATENCIES, strict=True):
                _draw_pair(axes, of_run[of_run["metric"] == metric])
                axes.set_title(f"{run}  {LATENCY_LABELS[metric]}")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2)
        alt = f"Cumulative distributions of TTFT, TPOT and E2E of {', '.join(runs)}."
        text = svg.render(figure, "validation-distributions", alt)
    caption = (
        "Share of requests at or below a latency, as measured on the real engine and as predicted "
        "from the arrivals alone. Logarithmic scale."
    )
    name = "validation-distributions"
    return svg.Plot(name, "Latency distributions, predicted and measured", text, caption)


def steps_scatter(content: Content) -> svg.Plot | None:
    """Draw predicted against measured time of each controlled step, one panel per kind."""
    points = content["step_points"]
    if not points:
        return None
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    keys = list(dict.fromkeys(point["key"] for point in points))
    columns = min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    with svg.drawing(svg.WIDTH_IN, 0.35 + 2.75 * rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, kind in zip(panels, kinds, strict=False):
            _draw_kind(axes, kind, [p for p in points if p["kind"] == kind], keys)
        for axes in panels[len(kinds) :]:
            axes.set_axis_off()
        figure.legend(handles=_scatter_legend(keys), loc="outside upper right", ncols=len(keys) + 2)
        alt = f"Predicted against measured time of {len(points)} controlled steps."
        text = svg.render(figure, "steps-scatter", alt)
    caption = (
        "Each point is one batch composition run alone on the engine. On the diagonal the "
        "prediction is exact; shaded, within 10%. Hollow: the half of the points set aside to "
        "judge a fit. Logarithmic scales."
    )
    return svg.Plot("steps-scatter", "Controlled steps, predicted against measured", text, caption)


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


def _draw_pair(axes: Axes, sample: pd.DataFrame) -> None:
    sides = {side: svg.positive(sample[side].to_numpy(float)) for side in ("measured", "predicted")}
    shown = np.concatenate(list(sides.values()))
    if not len(shown):
        axes.set_axis_off()
        return
    styles = {"measured": (svg.INK, 1.1, (0, (4, 2))), "predicted": (svg.BLUE, 1.7, "-")}
    for side, values_s in sides.items():
        x_s, share = distribution(values_s, 120)
        color, width, dashes = styles[side]
        axes.step(x_s, share, where="post", color=color, lw=width, ls=dashes, label=side)
    low_s, high_s = np.quantile(shown, (0.002, 1.0))
    svg.duration_axis(axes, float(low_s), float(high_s))
    axes.set_ylim(0, 1.04)
    axes.set_yticks(*_SHARES)


def _draw_kind(axes: Axes, kind: str, points: list[dict[str, Any]], keys: list[str]) -> None:
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
