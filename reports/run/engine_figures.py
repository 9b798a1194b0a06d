"""Figure of the engines: their state and token rates over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.series import ReplicaSeries, replica_series
from reports.words import duration, percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MOST_LINES = 6
_REPLICA_COLOURS = (svg.BLUE, svg.VERMILION, svg.GREEN, svg.PINK, svg.ORANGE, svg.SKY)


def engines_over_time(steps: pd.DataFrame, usable_blocks: float | None = None) -> svg.Plot | None:
    """Running, waiting, KV occupancy and token rates over time, a line a replica.

    ``usable_blocks`` is the KV blocks of a replica; without it, the most that were ever free
    stand in for them. More than six replicas are shown as their mean and range. None where no
    step was taken.
    """
    if not len(steps):
        return None
    end_s = max(float(steps["gpu_end_s"].max()), 1e-3)
    num_replicas = int(steps["replica"].nunique())
    num_windows = max(300 // num_replicas, 60) if num_replicas <= _MOST_LINES else 200
    num_windows = min(num_windows, max(len(steps), 2))
    edges_s = np.linspace(0.0, end_s, num_windows + 1)
    most_free = float(steps["free_blocks"].max())
    series = replica_series(steps, edges_s, usable_blocks or most_free)
    unit, unit_s = svg.time_unit(end_s)
    panels_of = {
        "running": "Running requests",
        "waiting": "Waiting requests",
        "kv_occupancy": "KV occupancy",
        "output_tokens_per_s": "Output tokens/s",
        "prompt_tokens_per_s": "Prompt tokens/s",
    }
    said = []
    with svg.drawing(svg.WIDTH_IN, 6.2) as figure:
        panels = figure.subplots(len(panels_of), 1, sharex=True)
        for axes, (field, title) in zip(panels, panels_of.items(), strict=True):
            values = np.array([getattr(one, field) for one in series])
            _draw_replicas(axes, edges_s / unit_s, values, series)
            axes.set_title(title)
            axes.set_ylim(0, float(values.max()) * 1.1 or 1.0)
            axes.locator_params(axis="y", nbins=4)
            _whole_numbers(axes, as_percent=field == "kv_occupancy")
            said.append(
                f"{title}: mean {_plain(values.mean(), field)}, at most "
                f"{_plain(values.max(), field)} in a window."
            )
        panels[-1].set_xlabel(f"time ({unit})")
        panels[-1].set_xlim(0, end_s / unit_s)
        if num_replicas > 1:
            figure.legend(
                *panels[0].get_legend_handles_labels(),
                loc="outside upper right",
                ncols=_MOST_LINES,
                handlelength=1.4,
            )
        alt = f"Engines over time, {num_replicas} in all. {' '.join(said)}"
        text = svg.render(figure, "engines-over-time", alt)
    if num_replicas > _MOST_LINES:
        shown = f": the mean over {num_replicas} replicas, and their range"
    else:
        shown = ", one line a replica" if num_replicas > 1 else ""
    caption = (
        f"Means over windows of {duration(edges_s[1])}{shown}. KV occupancy is blocks in use over "
        f"{'all blocks' if usable_blocks else 'the most seen free'}. Prompt tokens are those "
        "computed; cache hits are not among them."
    )
    return svg.Plot("engines-over-time", "Engines over time", text, caption)


def _draw_replicas(
    axes: Axes,
    edges: NDArray[np.float64],
    values: NDArray[np.float64],
    series: list[ReplicaSeries],
) -> None:
    middles = (edges[:-1] + edges[1:]) / 2
    if len(series) > _MOST_LINES:
        axes.fill_between(
            middles,
            values.min(axis=0),
            values.max(axis=0),
            color=svg.BLUE,
            alpha=0.2,
            lw=0,
            label="range over replicas",
        )
        axes.plot(middles, values.mean(axis=0), color=svg.BLUE, lw=1.2, label="mean")
        return
    for one, line, colour in zip(series, values, _REPLICA_COLOURS, strict=False):
        axes.plot(middles, line, color=colour, lw=1.1, label=f"replica {one.replica}")


def _whole_numbers(axes: Axes, *, as_percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    def written(value: float, _: object) -> str:
        return f"{value * 100:.4g}%" if as_percent else f"{value:,.10g}"

    axes.yaxis.set_major_formatter(FuncFormatter(written))


def _plain(value: float, field: str) -> str:
    return percent(value) if field == "kv_occupancy" else f"{value:,.3g}"
