"""Engines of a run side by side: their table, and their state over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.document import Column, Table
from reports.facts import Summary, section
from reports.numbers import duration, is_number, percent, significant
from reports.run.answer import slo_targets
from reports.series import ReplicaSeries, replica_series
from reports.svg import Plot, Sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def usable_blocks(summary: Summary) -> float | None:
    """Return the KV blocks of an engine that can hold tokens; None if the summary does not state
    them."""
    blocks = section(summary, "conditions").get("num_gpu_blocks")
    # vLLM reserves one block as the null block, which never holds tokens.
    return blocks - 1 if is_number(blocks) and blocks > 1 else None


_MOST_ROWS = 16
_ENGINE_COLUMNS = {
    "requests": Column("Requests", "number"),
    "good": Column("Met the SLO", "number"),
    "busy": Column("GPU busy in time", "number"),
    "running": Column("mean", "number", group="Running"),
    "most_running": Column("most", "number", group="Running"),
    "waiting": Column("mean", "number", group="Waiting"),
    "most_waiting": Column("most", "number", group="Waiting"),
    "kv": Column("mean", "number", group="KV occupancy"),
    "most_kv": Column("most", "number", group="KV occupancy"),
    "preemptions": Column("Preemptions", "number"),
}
_SHARES = ("good", "busy", "kv", "most_kv")
_MEANS = ("running", "waiting")


def engine_table(summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame) -> Table:
    """Return the engines of a run, one row each; without rows if there are fewer than two.

    With more than 16 engines, the eight with the most GPU time and the eight with the least are
    shown.
    """
    import pandas as pd

    if steps["replica"].nunique() < 2:
        return Table([], [])
    engines = _engines(requests, steps, usable_blocks(summary))
    names = [name for name in _ENGINE_COLUMNS if name != "good" or slo_targets(summary)]
    ordered = engines.sort_values("busy", ascending=False, kind="stable")
    if len(ordered) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        ordered = pd.concat([ordered.head(half), ordered.tail(half)])
    rows = [
        (f"replica {replica}", *(_written(name, float(row[name])) for name in names))
        for replica, row in ordered.sort_index().to_dict("index").items()
    ]
    columns = [Column("Engine"), *(_ENGINE_COLUMNS[name] for name in names)]
    note = _engine_note(engines, len(rows))
    return Table(columns, rows, "Engine by engine", note=note, on="page")


def _engines(requests: pd.DataFrame, steps: pd.DataFrame, usable: float | None) -> pd.DataFrame:
    """Return `_ENGINE_COLUMNS` by replica. Means are over the run, from first arrival to last
    step."""
    import pandas as pd

    blocks = usable or float(steps["free_blocks"].max())
    start_s, end_s = float(requests["arrival_s"].min()), float(steps["gpu_end_s"].max())
    edges_s = np.array([start_s, max(end_s, start_s + 1e-9)])
    by_steps, by_requests = steps.groupby("replica"), requests.groupby("replica")
    means = replica_series(steps, edges_s, blocks)
    replicas = [one.replica for one in means]
    return pd.DataFrame(
        {
            "requests": by_requests.size(),
            "good": by_requests["good"].mean(),
            "busy": by_steps["gpu_s"].sum() / (edges_s[1] - edges_s[0]),
            "running": pd.Series([float(one.running[0]) for one in means], replicas),
            "most_running": by_steps["running"].max(),
            "waiting": pd.Series([float(one.waiting[0]) for one in means], replicas),
            "most_waiting": by_steps["waiting"].max(),
            "kv": pd.Series([float(one.kv_occupancy[0]) for one in means], replicas),
            "most_kv": 1 - by_steps["free_blocks"].min() / blocks,
            "preemptions": by_requests["preemptions"].sum(),
        }
    ).fillna(0.0)


def _written(name: str, value: float) -> str:
    if name in _SHARES:
        return percent(value)
    return significant(value) if name in _MEANS else f"{value:,.0f}"


def _engine_note(engines: pd.DataFrame, num_shown: int) -> str:
    said = "Over the whole run, idle time included."
    spread = {
        name: float(engines[name].max() / engines[name].mean())
        for name in ("busy", "waiting")
        if engines[name].mean() > 0
    }
    if "busy" in spread:
        said += f" The busiest engine had {significant(spread['busy'])} times the mean GPU time"
        if "waiting" in spread:
            said += f", the longest queue was {significant(spread['waiting'])} times the mean"
        said += "; 1 would be an even spread."
    if num_shown < len(engines):
        half = num_shown // 2
        said += f" Of {len(engines):,} engines, the {half} busiest and the {half} least busy."
    return said


_MOST_LINES = 6


def engines_over_time(
    steps: pd.DataFrame, usable_blocks: float | None, sheet: Sheet
) -> Plot | None:
    """Draw running, waiting, KV occupancy and token rates over time, one line per replica.

    ``usable_blocks`` is the number of KV blocks of a replica; without it, the most that were ever
    free replace it. More than six replicas are shown as their mean and range. Returns None if no
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
    with sheet.drawing(6.2) as figure:
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
                ncols=2 if sheet.is_narrow else _MOST_LINES,
                handlelength=1.4,
            )
        alt = f"Engines over time, {num_replicas} in all. {' '.join(said)}"
        if num_replicas > _MOST_LINES:
            shown = f": the mean over {num_replicas} replicas, and their range"
        else:
            shown = ", one line a replica" if num_replicas > 1 else ""
        caption = (
            f"Means over windows of {duration(edges_s[1])}{shown}. KV occupancy is blocks in use "
            f"over {'all blocks' if usable_blocks else 'the most seen free'}. Prompt tokens are "
            "those computed; cache hits are not among them."
        )
        return sheet.plot(figure, "engines-over-time", "Engines over time", alt, caption)


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
    for one, line, color in zip(series, values, svg.SERIES, strict=False):
        axes.plot(middles, line, color=color, lw=1.1, label=f"replica {one.replica}")


def _whole_numbers(axes: Axes, *, as_percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    def written(value: float, _: object) -> str:
        return f"{value * 100:.4g}%" if as_percent else f"{value:,.10g}"

    axes.yaxis.set_major_formatter(FuncFormatter(written))


def _plain(value: float, field: str) -> str:
    return percent(value) if field == "kv_occupancy" else f"{value:,.3g}"
