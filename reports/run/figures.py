"""Figures of a run's report, drawn from a result folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports import svg
from reports.facts import AccountRow
from reports.numbers import LATENCY_LABELS, duration, percent, target, whole_percent
from reports.series import distribution, windows
from reports.svg import Plot, Sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def latency_distributions(
    requests: pd.DataFrame, targets_s: dict[str, float], sheet: Sheet
) -> Plot | None:
    """Draw the share of finished requests within a latency, for TTFT, TPOT and E2E, with their SLO
    lines.

    ``requests`` is as ``read_requests`` returns it; ``targets_s`` maps metric names to seconds.
    Returns None if no request finished.
    """
    finished = _finished(requests)
    finished = finished[_is_measured(finished)]
    metrics = [name for name in ("ttft", "tpot", "e2e") if len(_values(finished, name))]
    if not metrics:
        return None
    counts = [f"{LATENCY_LABELS[name]} {len(_values(finished, name)):,}" for name in metrics]
    said = []
    caption = (
        f"Share of finished requests at or below a latency (requests: {', '.join(counts)}; "
        "a one-token answer has no TPOT). Logarithmic scale."
    )
    if targets_s:
        caption += " Dashed: the SLO."
    with sheet.drawing(1.9 * len(metrics) if sheet.is_narrow else 2.7) as figure:
        panels = sheet.panels(figure, len(metrics), sharey=True)
        figure.set_layout_engine("constrained", wspace=0.05)
        for axes, name in zip(panels, metrics, strict=True):
            values_s = _values(finished, name)
            said.append(_draw_distribution(axes, name, values_s, targets_s.get(name)))
        panels[0].set_ylabel("share of requests")
        alt = f"Cumulative distributions of latency. {' '.join(said)}"
        return sheet.plot(figure, "latency-distributions", "Latency distributions", alt, caption)


def latency_over_time(
    requests: pd.DataFrame, targets_s: dict[str, float], sheet: Sheet
) -> Plot | None:
    """Draw TTFT and TPOT by time of arrival: the median, and bands to p90 and p99.

    Returns None if no request finished.
    """
    finished = _finished(requests)
    metrics = [name for name in ("ttft", "tpot") if len(_values(finished, name))]
    if not metrics:
        return None
    arrivals_s = finished["arrival_s"].to_numpy(float)
    end_s = max(float(arrivals_s.max()), 1e-3)
    unit, unit_s = svg.time_unit(end_s)
    warm_s = _warm_up_s(requests)
    said, middles = [], []
    with sheet.drawing(1.9 * len(metrics) + 0.5) as figure:
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, metrics, strict=True):
            values_s = finished[f"{name}_s"].to_numpy(float)
            found = windows(arrivals_s, values_s, (0.5, 0.9, 0.99), end_s=end_s)
            p50, p90, p99 = found.percentiles
            edges = found.edges_s / unit_s
            # Draw windows as steps: a line between their centers would invent values.
            axes.stairs(p99, edges, baseline=p90, fill=True, color=svg.BLUE, alpha=0.16, lw=0)
            axes.stairs(p90, edges, baseline=p50, fill=True, color=svg.BLUE, alpha=0.34, lw=0)
            axes.stairs(p50, edges, baseline=None, color=svg.BLUE, lw=1.5)
            shown = [*svg.positive(found.percentiles.ravel())]
            shown += [targets_s[name]] if name in targets_s else []
            if shown:
                svg.duration_axis(axes, min(shown), max(shown), vertical=True)
            if name in targets_s:
                axes.axhline(targets_s[name], color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
            if warm_s:
                axes.axvspan(0, warm_s / unit_s, color=svg.MUTED, alpha=0.14, lw=0)
            axes.set_title(LATENCY_LABELS[name])
            middles.append((found.median_count, found.edges_s[1] - found.edges_s[0]))
            said.append(
                f"The median {LATENCY_LABELS[name]} of a window lies between "
                f"{duration(np.nanmin(p50))} and {duration(np.nanmax(p50))}, its p99 between "
                f"{duration(np.nanmin(p99))} and {duration(np.nanmax(p99))}."
            )
        panels[-1].set_xlabel(f"arrival time ({unit})")
        panels[-1].set_xlim(0, end_s / unit_s)
        _band_legend(figure if sheet.is_narrow else panels[0], bool(targets_s))
        alt = f"Latency over arrival time. {' '.join(said)}"
        count, length_s = middles[0]
        caption = (
            f"Finished requests by time of arrival, in windows of {duration(length_s)} with about "
            f"{count:,} {'request' if count == 1 else 'requests'} each"
            + (": a window's p99 is near its maximum." if count < 100 else ".")
            + " Logarithmic scale."
            + (f" Grey: the first {duration(warm_s)}, not measured." if warm_s else "")
        )
        return sheet.plot(figure, "latency-over-time", "Latency over time", alt, caption)


def _finished(requests: pd.DataFrame) -> pd.DataFrame:
    return requests[requests["status"].astype(str).str.lower() == "finished"]


def _is_measured(requests: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which requests the figures cover; all of them if the run does not mark any as
    measured."""
    if "measured" not in requests:
        return np.ones(len(requests), bool)
    return requests["measured"].to_numpy(bool)


def _warm_up_s(requests: pd.DataFrame) -> float:
    """Return the seconds before the first measured arrival; 0 if no arrival is excluded."""
    measured = _is_measured(requests)
    arrivals_s = requests["arrival_s"].to_numpy(float)
    if not measured.any() or not (arrivals_s[~measured] < arrivals_s[measured].min()).any():
        return 0.0
    return float(arrivals_s[measured].min())


def _values(finished: pd.DataFrame, name: str) -> NDArray[np.float64]:
    return svg.positive(finished[f"{name}_s"].to_numpy(float))


def _draw_distribution(
    axes: Axes, name: str, values_s: NDArray[np.float64], target_s: float | None
) -> str:
    """Draw one panel and return its content in words."""
    label = LATENCY_LABELS[name]
    x_s, share = distribution(values_s)
    axes.step(np.append(x_s[0], x_s), np.append(0.0, share), where="post", color=svg.BLUE)
    highest_s = max(float(x_s[-1]), target_s or 0.0)
    # Cut the axis at the slowest few in a thousand; the fastest must not stretch it.
    svg.duration_axis(axes, max(float(x_s[0]), highest_s / 1e4), highest_s)
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_title(label)
    ordered = np.sort(values_s)
    middle_s, slow_s = (float(np.quantile(ordered, q, method="inverted_cdf")) for q in (0.5, 0.99))
    axes.plot([middle_s, slow_s], [0.5, 0.99], "o", ms=4, color=svg.BLUE)
    axes.set_title(
        f"p50 {duration(middle_s)}, p99 {duration(slow_s)}",
        loc="right",
        fontsize=8.5,
        fontweight="normal",
    )
    said = f"{label}: half within {duration(middle_s)}, 99% within {duration(slow_s)}"
    if target_s is not None:
        within = float((values_s <= target_s).mean())
        axes.axvline(target_s, color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
        # The space to the right of the curve's start is always free; the end of the axis may be too
        # near.
        low_s, high_s = axes.get_xlim()
        is_near_end = np.log(target_s / low_s) > 0.6 * np.log(high_s / low_s)
        axes.annotate(
            f"SLO {target(target_s)}",
            (target_s, 0.05),
            xytext=(-4 if is_near_end else 4, 0),
            textcoords="offset points",
            ha="right" if is_near_end else "left",
            fontsize=8.5,
            color=svg.VERMILION,
        )
        said += f"; {percent(within)} within the SLO of {target(target_s)}"
    return f"{said}."


def _band_legend(above: Axes | Figure, with_slo: bool) -> None:
    """Add the legend of the bands: beside the title of a panel, or above a whole figure."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = [
        Line2D([], [], color=svg.BLUE, lw=1.5, label="p50"),
        Patch(facecolor=svg.BLUE, alpha=0.5, lw=0, label="to p90"),
        Patch(facecolor=svg.BLUE, alpha=0.16, lw=0, label="to p99"),
    ]
    if with_slo:
        handles.append(Line2D([], [], color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)), label="SLO"))
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
    if isinstance(above, Figure):
        place = {"loc": "outside upper right"}
    above.legend(handles=handles, ncols=4, handlelength=1.6, columnspacing=1.2, **place)


_DARK = ("#0a6ead", "#6b53a4", "#0b7f7a", "#8a5a3c", "#a3213b")
_BLUE, _VIOLET, _TEAL, _BROWN, _CRIMSON = _DARK
# The same in both themes, unlike the lines of other figures, because the hues must stay distinct.
ACCOUNT_COLORS = {
    "api_server": "#5b7083",
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


def account_breakdown(accounts: dict[str, list[AccountRow]], sheet: Sheet) -> Plot | None:
    """Draw where time goes as one stacked bar per name, e.g. GPU, E2E and TTFT.

    Rows are as ``account_rows`` returns them. Returns None if there is no time to split.
    """
    bars = [(label, rows) for label, rows in accounts.items() if rows]
    if not bars:
        return None
    labels = {row.account: row.label for _, rows in bars for row in rows}
    said = []
    legend_columns = 2 if sheet.is_narrow else 4
    legend_in = 0.19 * -(-len(labels) // legend_columns)
    with sheet.drawing(0.62 * len(bars) + 0.55 + legend_in) as figure:
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
                if row.share >= (0.12 if sheet.is_narrow else 0.055):
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
            loc="outside lower left",
            ncols=legend_columns,
            handlelength=1.0,
            handleheight=1.0,
            columnspacing=1.4,
        )
        for label, rows in bars:
            shares = ", ".join(f"{row.label} {percent(row.share)}" for row in rows)
            said.append(f"{label}: {shares}.")
        alt = f"Shares of time. {' '.join(said)}"
        caption = (
            "GPU: all steps of all engines, whosever they were. E2E and TTFT: mean over finished "
            "requests. Every second is in exactly one account, so each bar is the whole time."
        )
        return sheet.plot(figure, "account-breakdown", "Shares of time by account", alt, caption)


def _text_on(color: str) -> str:
    return "#ffffff" if color in _DARK else "#111111"
