"""Figures of a run's report, drawn from a result folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.facts import AccountRow, Summary, account_rows
from reports.numbers import duration, percent, whole_percent
from reports.run.latency_figures import latency_distributions, latency_over_time
from reports.run.rows import usable_blocks
from reports.run.verdict import slo_targets
from reports.series import ReplicaSeries, replica_series
from reports.svg import Plot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_DARK = ("#0a6ead", "#6b53a4", "#0b7f7a", "#8a5a3c", "#a3213b")
_BLUE, _VIOLET, _TEAL, _BROWN, _CRIMSON = _DARK
# The same in both themes, unlike the lines of other figures, because the hues must stay distinct.
ACCOUNT_COLORS = {
    "admission_queue": svg.ORANGE,
    "scheduling_wait": svg.SAND,
    "cache_load": _VIOLET,
    "prefill_compute": _BLUE,
    "prefill_memory": svg.SKY,
    "decode_weight_reads": svg.GREEN,
    "decode_state_reads": svg.MINT,
    "communication": svg.YELLOW,
    "launch_and_host": svg.GRAY,
    "others_prefill": svg.PINK,
    "kv_transfer": _TEAL,
    "preemption_recompute": "#d35f0a",
    "preemption_swap": _BROWN,
    "failure_rework": _CRIMSON,
    "remainder": svg.SILVER,
}


def account_breakdown(accounts: dict[str, list[AccountRow]]) -> svg.Plot | None:
    """Draw where time goes as one stacked bar per name, e.g. GPU, E2E and TTFT.

    Rows are as ``account_rows`` returns them. Returns None if there is no time to split.
    """
    bars = [(label, rows) for label, rows in accounts.items() if rows]
    if not bars:
        return None
    labels = {row.account: row.label for _, rows in bars for row in rows}
    said = []
    with svg.drawing(svg.WIDTH_IN, 0.62 * len(bars) + 1.25) as figure:
        axes = figure.subplots()
        drawn: set[str] = set()
        for position, (_, rows) in enumerate(bars):
            left = 0.0
            for row in rows:
                axes.barh(
                    -position,
                    row.share,
                    left=left,
                    height=0.62,
                    color=ACCOUNT_COLORS.get(row.account, svg.SILVER),
                    edgecolor=svg.PAPER,
                    linewidth=0.8,
                    label=None if row.account in drawn else labels[row.account],
                )
                if row.share >= 0.055:
                    middle = (left + row.share / 2, -position)
                    axes.annotate(
                        whole_percent(row.share),
                        middle,
                        ha="center",
                        va="center",
                        fontsize=8.5,
                        color=_text_on(ACCOUNT_COLORS.get(row.account, svg.SILVER)),
                    )
                drawn.add(row.account)
                left += row.share
        names = [f"{label}\n{duration(sum(row.seconds for row in rows))}" for label, rows in bars]
        axes.set_yticks([-position for position in range(len(bars))], names)
        axes.tick_params(axis="y", labelcolor=svg.INK, labelsize=9)
        axes.set_xlim(0, 1)
        axes.set_ylim(0.36 - len(bars), 0.36)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks([])
        figure.legend(
            loc="outside lower left", ncols=4, handlelength=1.0, handleheight=1.0, columnspacing=1.4
        )
        for label, rows in bars:
            shares = ", ".join(f"{row.label} {percent(row.share)}" for row in rows)
            said.append(f"{label}: {shares}.")
        text = svg.render(figure, "account-breakdown", f"Shares of time. {' '.join(said)}")
    caption = (
        "GPU: all steps of all engines, whosever they were. E2E and TTFT: mean over finished "
        "requests. Every second is in exactly one account, so each bar is the whole time."
    )
    return svg.Plot("account-breakdown", "Shares of time by account", text, caption)


def _text_on(color: str) -> str:
    return "#ffffff" if color in _DARK else "#111111"


_MOST_LINES = 6


def engines_over_time(steps: pd.DataFrame, usable_blocks: float | None = None) -> svg.Plot | None:
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
    for one, line, color in zip(series, values, svg.SERIES, strict=False):
        axes.plot(middles, line, color=color, lw=1.1, label=f"replica {one.replica}")


def _whole_numbers(axes: Axes, *, as_percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    def written(value: float, _: object) -> str:
        return f"{value * 100:.4g}%" if as_percent else f"{value:,.10g}"

    axes.yaxis.set_major_formatter(FuncFormatter(written))


def _plain(value: float, field: str) -> str:
    return percent(value) if field == "kv_occupancy" else f"{value:,.3g}"


def draw_figures(summary: Summary, requests: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Plot]:
    """Draw every figure that has data, by name, in the order of the report.

    Arguments are as ``read_summary``, ``read_requests`` and ``read_steps`` return them.
    """
    targets_s = slo_targets(summary)
    plots = (
        latency_distributions(requests, targets_s),
        latency_over_time(requests, targets_s),
        engines_over_time(steps, usable_blocks(summary)),
        account_breakdown(
            {
                "GPU": account_rows(summary, "step_accounts_s"),
                "E2E": account_rows(summary, "e2e_accounts_s"),
                "TTFT": account_rows(summary, "ttft_accounts_s"),
            }
        ),
    )
    return {plot.name: plot for plot in plots if plot is not None}
