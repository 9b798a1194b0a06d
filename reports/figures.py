"""The figures of a report, each an SVG with its title, caption and text alternative."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.facts import AccountRow
from reports.series import ReplicaSeries, distribution, replica_series, windows
from reports.words import LATENCY_LABELS, duration, percent, target, whole_percent
from sim.accounts import TIME_ACCOUNTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_WIDTH_IN = 8.0
_MOST_LINES = 6
_REPLICA_COLOURS = (svg.BLUE, svg.VERMILION, svg.GREEN, svg.PINK, svg.ORANGE, svg.SKY)
_ACCOUNT_COLOURS = dict(
    zip(
        TIME_ACCOUNTS,
        (
            svg.ORANGE,
            svg.SAND,
            svg.VIOLET,
            svg.BLUE,
            svg.SKY,
            svg.GREEN,
            svg.MINT,
            svg.YELLOW,
            svg.GREY,
            svg.PINK,
            svg.VERMILION,
            svg.SILVER,
        ),
        strict=True,
    )
)


class Plot(NamedTuple):
    """A figure to stand in a page."""

    name: str
    title: str
    svg: str
    caption: str


def latency_distributions(requests: pd.DataFrame, targets_s: dict[str, float]) -> Plot | None:
    """Share of finished requests within a latency: TTFT, TPOT, E2E, with their SLO lines.

    ``requests`` is as ``read_requests`` returns it; ``targets_s`` is metric name -> seconds.
    None where no request finished.
    """
    finished = _finished(requests)
    metrics = [name for name in ("ttft", "tpot", "e2e") if len(_values(finished, name))]
    if not metrics:
        return None
    said = []
    with svg.drawing(_WIDTH_IN, 2.7) as figure:
        panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, metrics, strict=True):
            values_s = _values(finished, name)
            said.append(_draw_distribution(axes, name, values_s, targets_s.get(name)))
        panels[0].set_ylabel("share of requests")
        alt = f"Cumulative distributions of latency. {' '.join(said)}"
        text = svg.render(figure, "latency-distributions", alt)
    counts = [f"{LATENCY_LABELS[name]} {len(_values(finished, name)):,}" for name in metrics]
    caption = (
        f"Share of finished requests at or below a latency (requests: {', '.join(counts)}; "
        "a one-token answer has no TPOT). Logarithmic scale."
    )
    if targets_s:
        caption += " Dashed: the SLO."
    return Plot("latency-distributions", "Latency distributions", text, caption)


def latency_over_time(requests: pd.DataFrame, targets_s: dict[str, float]) -> Plot | None:
    """TTFT and TPOT by time of arrival: median, and bands to p90 and p99.

    None where no request finished.
    """
    finished = _finished(requests)
    metrics = [name for name in ("ttft", "tpot") if len(_values(finished, name))]
    if not metrics:
        return None
    arrivals_s = finished["arrival_s"].to_numpy(float)
    end_s = max(float(arrivals_s.max()), 1e-3)
    unit, unit_s = svg.time_unit(end_s)
    said, middles = [], []
    with svg.drawing(_WIDTH_IN, 1.9 * len(metrics) + 0.5) as figure:
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, metrics, strict=True):
            values_s = finished[f"{name}_s"].to_numpy(float)
            found = windows(arrivals_s, values_s, (0.5, 0.9, 0.99))
            p50, p90, p99 = found.percentiles
            edges = found.edges_s / unit_s
            # Windows are drawn as steps: a line between their middles would invent values.
            axes.stairs(p99, edges, baseline=p90, fill=True, color=svg.BLUE, alpha=0.16, lw=0)
            axes.stairs(p90, edges, baseline=p50, fill=True, color=svg.BLUE, alpha=0.34, lw=0)
            axes.stairs(p50, edges, baseline=None, color=svg.BLUE, lw=1.5)
            shown = [*svg.positive(found.percentiles.ravel())]
            shown += [targets_s[name]] if name in targets_s else []
            if shown:
                svg.duration_axis(axes, min(shown), max(shown), vertical=True)
            if name in targets_s:
                axes.axhline(targets_s[name], color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
            axes.set_title(LATENCY_LABELS[name])
            middles.append((found.median_count, found.edges_s[1] - found.edges_s[0]))
            said.append(
                f"The median {LATENCY_LABELS[name]} of a window lies between "
                f"{duration(np.nanmin(p50))} and {duration(np.nanmax(p50))}, its p99 between "
                f"{duration(np.nanmin(p99))} and {duration(np.nanmax(p99))}."
            )
        panels[-1].set_xlabel(f"arrival time ({unit})")
        panels[-1].set_xlim(0, end_s / unit_s)
        _band_legend(panels[0], bool(targets_s))
        alt = f"Latency over arrival time. {' '.join(said)}"
        text = svg.render(figure, "latency-over-time", alt)
    count, length_s = middles[0]
    caption = (
        f"Finished requests by time of arrival, in windows of {duration(length_s)} with about "
        f"{count:,} requests each"
        + (": a window's p99 is near its maximum." if count < 100 else ".")
        + " Logarithmic scale."
    )
    return Plot("latency-over-time", "Latency over time", text, caption)


def engines_over_time(steps: pd.DataFrame) -> Plot | None:
    """Running, waiting, KV occupancy and token rates over time, a line a replica.

    More than six replicas are shown as their mean and range. None where no step was taken.
    """
    if not len(steps):
        return None
    end_s = max(float(steps["gpu_end_s"].max()), 1e-3)
    num_replicas = int(steps["replica"].nunique())
    num_windows = max(300 // num_replicas, 60) if num_replicas <= _MOST_LINES else 200
    num_windows = min(num_windows, max(len(steps), 2))
    edges_s = np.linspace(0.0, end_s, num_windows + 1)
    series = replica_series(steps, edges_s)
    unit, unit_s = svg.time_unit(end_s)
    panels_of = {
        "running": "Running requests",
        "waiting": "Waiting requests",
        "kv_occupancy": "KV occupancy",
        "output_tokens_per_s": "Output tokens/s",
        "prompt_tokens_per_s": "Prompt tokens/s",
    }
    said = []
    with svg.drawing(_WIDTH_IN, 6.2) as figure:
        panels = figure.subplots(len(panels_of), 1, sharex=True)
        for axes, (field, title) in zip(panels, panels_of.items(), strict=True):
            values = np.array([getattr(one, field) for one in series])
            _draw_replicas(axes, edges_s / unit_s, values, series)
            axes.set_title(title)
            axes.set_ylim(0, max(float(values.max()) * 1.1, 1e-9))
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
    caption = (
        f"Means over windows of {duration(edges_s[1])}, a replica each. KV occupancy is the share "
        "of the most blocks seen free. Prompt tokens are those computed, cache hits left out."
    )
    if num_replicas > _MOST_LINES:
        caption = caption.replace(
            "a replica each", f"the mean and range of {num_replicas} replicas"
        )
    return Plot("engines-over-time", "Engines over time", text, caption)


def account_breakdown(e2e: list[AccountRow], ttft: list[AccountRow]) -> Plot | None:
    """Where the time of a finished request goes: a stacked bar each for E2E and TTFT.

    Rows are as ``account_rows`` returns them. None where there is no time to split.
    """
    bars = [(label, rows) for label, rows in (("E2E", e2e), ("TTFT", ttft)) if rows]
    if not bars:
        return None
    labels = {row.account: row.label for _, rows in bars for row in rows}
    said = []
    with svg.drawing(_WIDTH_IN, 0.62 * len(bars) + 1.25) as figure:
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
                    color=_ACCOUNT_COLOURS.get(row.account, svg.SILVER),
                    edgecolor=svg.PAPER,
                    linewidth=0.8,
                    label=None if row.account in drawn else labels[row.account],
                )
                if row.share >= 0.055:
                    middle = (left + row.share / 2, -position)
                    # The fills stay light or dark in both themes, so their text does as well.
                    axes.annotate(
                        whole_percent(row.share),
                        middle,
                        ha="center",
                        va="center",
                        fontsize=8.5,
                        color=_text_on(_ACCOUNT_COLOURS.get(row.account, svg.SILVER)),
                    )
                drawn.add(row.account)
                left += row.share
        names = [f"{label}\n{duration(sum(row.mean_s for row in rows))}" for label, rows in bars]
        axes.set_yticks([-position for position in range(len(bars))], names)
        axes.tick_params(axis="y", labelcolor=svg.INK, labelsize=9)
        axes.set_xlim(0, 1)
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
        "Mean over finished requests. Every second of a request is in exactly one account, so "
        "each bar is the whole time."
    )
    return Plot("account-breakdown", "Shares of time by account", text, caption)


def _finished(requests: pd.DataFrame) -> pd.DataFrame:
    return requests[requests["status"].astype(str).str.lower() == "finished"]


def _values(finished: pd.DataFrame, name: str) -> NDArray[np.float64]:
    return svg.positive(finished[f"{name}_s"].to_numpy(float))


def _draw_distribution(
    axes: Axes, name: str, values_s: NDArray[np.float64], target_s: float | None
) -> str:
    """One panel; returns what it says in words."""
    label = LATENCY_LABELS[name]
    x_s, share = distribution(values_s)
    axes.step(np.append(x_s[0], x_s), np.append(0.0, share), where="post", color=svg.BLUE)
    highest_s = max(float(x_s[-1]), target_s or 0.0)
    # The slowest few in a thousand hold the axis; the fastest must not stretch it.
    svg.duration_axis(axes, max(float(x_s[0]), highest_s / 1e4), highest_s)
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_title(label)
    ordered = np.sort(values_s)
    middle_s, slow_s = (float(np.quantile(ordered, q, method="inverted_cdf")) for q in (0.5, 0.99))
    for level, at_s, text_offset in ((0.5, middle_s, (7, -3)), (0.99, slow_s, (2, -14))):
        axes.plot([at_s], [level], "o", ms=4, color=svg.BLUE)
        axes.annotate(
            f"p{level * 100:.0f} {duration(at_s)}",
            (at_s, level),
            xytext=text_offset,
            textcoords="offset points",
            ha="left" if level == 0.5 else "center",
            fontsize=8.5,
        )
    said = f"{label}: half within {duration(middle_s)}, 99% within {duration(slow_s)}"
    if target_s is not None:
        within = float((values_s <= target_s).mean())
        axes.axvline(target_s, color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
        axes.annotate(
            f"SLO {target(target_s)}",
            (target_s, 0.05),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color=svg.VERMILION,
        )
        said += f"; {percent(within)} within the SLO of {target(target_s)}"
    return f"{said}."


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


def _band_legend(axes: Axes, with_slo: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = [
        Line2D([], [], color=svg.BLUE, lw=1.5, label="p50"),
        Patch(facecolor=svg.BLUE, alpha=0.5, lw=0, label="to p90"),
        Patch(facecolor=svg.BLUE, alpha=0.16, lw=0, label="to p99"),
    ]
    if with_slo:
        handles.append(Line2D([], [], color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)), label="SLO"))
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=4,
        borderaxespad=0.1,
        handlelength=1.6,
        columnspacing=1.2,
    )


def _whole_numbers(axes: Axes, *, as_percent: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    def written(value: float, _: object) -> str:
        return f"{value * 100:.4g}%" if as_percent else f"{value:,.10g}"

    axes.yaxis.set_major_formatter(FuncFormatter(written))


def _plain(value: float, field: str) -> str:
    return percent(value) if field == "kv_occupancy" else f"{value:,.3g}"


def _text_on(colour: str) -> str:
    dark = {svg.BLUE, svg.VIOLET, svg.GREEN, svg.VERMILION}
    return "#ffffff" if colour in dark else "#111111"
