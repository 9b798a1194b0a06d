"""Figures of a trace: arrivals over time, lengths, and prefix cache hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reports import svg
from reports.numbers import duration, percent, significant
from reports.svg import Plot, Sheet
from reports.trace.answer import Content, capacity_for, span, tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = (0, (4, 3))


def arrivals_over_time(series: dict[str, Any] | None, what: str, sheet: Sheet) -> Plot | None:
    """Draw the arrival rate in equal windows, with the range of a steady Poisson process."""
    if series is None:
        return None
    window_s, counts = series["window_s"], np.array(series["counts"], float)
    unit, unit_s = svg.time_unit(window_s * len(counts))
    rate, mean = counts / window_s, float(counts.mean()) / window_s
    scatter = 1.96 * np.sqrt(counts.mean()) / window_s
    outside = float(np.mean(np.abs(rate - mean) > scatter))
    with sheet.drawing(2.3) as figure:
        axes = figure.subplots()
        edges = np.arange(len(counts) + 1) * window_s / unit_s
        low = max(mean - scatter, 0)
        axes.axhspan(low, mean + scatter, color=svg.GRAY, alpha=0.18, lw=0)
        axes.axhline(mean, color=svg.MUTED, lw=0.8)
        axes.stairs(rate, edges, baseline=None, color=svg.BLUE, lw=1.5)
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(0, max(float(rate.max()), mean + scatter) * 1.1)
        axes.set_xlabel(f"time since the first arrival ({unit})")
        axes.set_ylabel(f"{what}/s")
        alt = (
            f"Arrival rate in windows of {span(window_s)}: mean {significant(mean)}/s, lowest "
            f"{significant(float(rate.min()))}/s, highest {significant(float(rate.max()))}/s; "
            f"{percent(outside)} of windows lie outside what a steady Poisson process gives."
        )
        caption = (
            f"{what.capitalize()} per second in windows of {span(window_s)}, and their mean. Grey: "
            f"where 95% of windows would lie if arrivals were a Poisson process at a steady rate; "
            f"{percent(outside)} lie outside."
        )
        return sheet.plot(figure, "arrivals-over-time", "Arrivals over time", alt, caption)


def gaps(series: dict[str, Any] | None, sheet: Sheet) -> Plot | None:
    """Draw the distribution of gaps between arrivals beside an exponential one."""
    if series is None:
        return None
    gap_s, share = np.array(series["gap_s"]), np.array(series["share"])
    mean_s = series["mean_s"]
    is_positive = gap_s > 0
    if not is_positive.any():
        return None
    with sheet.drawing(2.5) as figure:
        axes = figure.subplots()
        # The shortest few in a hundred would stretch the axis over empty space.
        low_s = max(float(gap_s[is_positive][0]), _at(series, "gap_s", 0.01), mean_s / 1e4)
        svg.duration_axis(axes, low_s, float(gap_s[-1]))
        x_s = np.geomspace(*axes.get_xlim(), 160)
        axes.plot(x_s, 1 - np.exp(-x_s / mean_s), color=svg.MUTED, lw=1.1, ls=_DASHES)
        axes.step(gap_s[is_positive], share[is_positive], where="post", color=svg.BLUE)
        _share_axis(axes, "share of gaps")
        axes.set_xlabel("gap between arrivals")
        _legend(axes, [("recorded", svg.BLUE, "-"), ("exponential, same mean", svg.MUTED, _DASHES)])
        middle_s = _at(series, "gap_s", 0.5)
        alt = (
            f"Cumulative distribution of the gaps between arrivals: half are within "
            f"{duration(middle_s)}, 99% within {duration(_at(series, 'gap_s', 0.99))}. An "
            f"exponential distribution of the same mean, {duration(mean_s)}, has half within "
            f"{duration(mean_s * np.log(2))}."
        )
        caption = (
            f"Share of gaps at or below a length; mean {duration(mean_s)}. Dashed: the exponential "
            "distribution of a Poisson process. Logarithmic scale."
        )
        return sheet.plot(figure, "gap-distribution", "Gaps between arrivals", alt, caption)


def hits_by_capacity(content: Content, sheet: Sheet) -> Plot | None:
    """Draw the share of input tokens that an LRU cache finds, by its capacity."""
    series = content["series"].get("lru")
    if series is None:
        return None
    capacity, hits = np.array(series["capacity_tokens"]), np.array(series["hit_fraction"])
    possible = content["reuse"]["prefix_hit_fraction"]
    said = []
    with sheet.drawing(3.0) as figure:
        axes = figure.subplots()
        axes.axhline(possible, color=svg.MUTED, lw=1.1, ls=_DASHES)
        axes.step(capacity, hits, where="post", color=svg.BLUE, lw=1.8)
        svg.log_axis(axes, float(capacity[0]), float(capacity[-1]), tokens)
        axes.set_ylim(0, possible * 1.18)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g}%")
        axes.annotate(
            f"cache without limit: {percent(possible)}",
            (float(capacity[0]), possible),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=8.5,
            color=svg.MUTED,
        )
        for share in (0.5, 0.9):
            row = capacity_for(content, share)
            if row is None:
                continue
            at = (row["capacity_tokens"], share * possible)
            axes.plot(*at, "o", ms=5, color=svg.BLUE)
            # The space to the left of a rising curve is free, unless the axis begins there.
            far = 0.6 if sheet.is_narrow else 0.4
            is_far_left = np.log(at[0] / capacity[0]) < far * np.log(capacity[-1] / capacity[0])
            unit = "" if sheet.is_narrow else " tokens"
            axes.annotate(
                f"{share:.0%} of it: {tokens(row['capacity_tokens'])}{unit}",
                at,
                xytext=(8, -12) if is_far_left else (-8, 2),
                textcoords="offset points",
                ha="left" if is_far_left else "right",
                fontsize=8.5,
            )
            said.append(f"{share:.0%} of it at {tokens(row['capacity_tokens'])} tokens")
        axes.set_xlabel("capacity of the cache (tokens)")
        axes.set_ylabel("hits (share of input tokens)")
        kv_cache = content["kv_cache"]
        if kv_cache:
            _gib_axis(axes, kv_cache["bytes_per_token"])
        alt = (
            f"Hit share of an LRU prefix cache by its capacity. A cache without limit finds "
            f"{percent(possible)} of input tokens; {', '.join(said)}."
        )
        caption = (
            "Share of input tokens found in one LRU cache that serves all requests, exact at every "
            f"capacity, in blocks of {content['reuse']['prefix_block_tokens']} tokens; a prompt is "
            "in it as soon as it arrives. Logarithmic scale."
        )
        if kv_cache:
            caption += (
                f" Above: the size of that KV cache for {kv_cache['model']} ({kv_cache['dtype']})."
            )
        return sheet.plot(figure, "hits-by-capacity", "Prefix hits by cache capacity", alt, caption)


def reuse_over_time(content: Content, sheet: Sheet) -> Plot | None:
    """Draw the distinct tokens used over time, and the time to the next use of a block."""
    series, reuse = content["series"], content["reuse"]
    used = series.get("working_set")
    if used is None or reuse is None:
        return None
    time_s, used_tokens = np.array(used["time_s"]), np.array(used["tokens"])
    again = series["reuse_time"]
    unit, unit_s = svg.time_unit(float(time_s[-1]))
    with sheet.drawing(4.8 if sheet.is_narrow else 2.7) as figure:
        left, right = sheet.panels(figure, 2)
        figure.set_layout_engine("constrained", wspace=0.06)
        left.plot(time_s / unit_s, used_tokens, color=svg.BLUE)
        left.set_xlim(0, time_s[-1] / unit_s)
        left.set_ylim(0, used_tokens[-1] * 1.08)
        left.yaxis.set_major_formatter(lambda value, _: tokens(value))
        left.set_xlabel(f"time since the first arrival ({unit})")
        left.set_ylabel("distinct tokens used")
        left.set_title("Working set")
        alt = (
            f"Distinct tokens used, over time: {tokens(used_tokens[-1])} after {span(time_s[-1])}."
        )
        again_s = np.array(again["time_s"])
        if (again_s > 0).any():
            is_positive = again_s > 0
            shown_s = again_s[is_positive]
            svg.duration_axis(right, max(float(shown_s[0]), float(shown_s[-1]) / 1e5), shown_s[-1])
            right.step(shown_s, np.array(again["share"])[is_positive], where="post", color=svg.BLUE)
            middle_s, late_s = (reuse[f"reuse_time_s_{q}"] for q in ("p50", "p90"))
            right.plot([middle_s, late_s], [0.5, 0.9], "o", ms=4, color=svg.BLUE)
            right.set_title("Time to the next use")
            percentiles = f"p50 {duration(middle_s)}, p90 {duration(late_s)}"
            if sheet.is_narrow:
                at = {"xytext": (-4, 4), "textcoords": "offset points", "xycoords": "axes fraction"}
                style: dict[str, Any] = {"ha": "right", "fontsize": 8.5, **at}
                right.annotate(percentiles, (1, 0), **style)
            else:
                right.set_title(percentiles, loc="right", fontsize=8.5, fontweight="normal")
            alt += (
                f" A block is used again within {duration(middle_s)} in half of all cases, within "
                f"{duration(late_s)} in 90%."
            )
        _share_axis(right, "share of re-uses")
        right.set_xlabel("time since the last use")
        caption = (
            "Left: distinct tokens in the prefix blocks used so far. Right: of all uses of a block "
            "seen before, the share that follows its last use within a time; logarithmic scale."
        )
        return sheet.plot(figure, "reuse-over-time", "Working set and re-use", alt, caption)


def _gib_axis(axes: Axes, bytes_per_token: int) -> None:
    above = axes.twiny()
    low, high = axes.get_xlim()
    scale = bytes_per_token / 2**30
    svg.log_axis(above, low * scale, high * scale, lambda value: f"{value:,.6g}")
    above.grid(False)
    above.spines["top"].set_visible(True)
    above.set_xlabel("KV cache (GiB)")


def _share_axis(axes: Axes, label: str) -> None:
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_ylabel(label)


def _legend(axes: Axes, entries: list[tuple[str, str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=c, lw=1.4, ls=style, label=label) for label, c, style in entries
    ]
    axes.legend(handles=handles, loc="upper left", handlelength=1.8)


def _at(series: dict[str, Any], name: str, share: float) -> float:
    """Return the least value that has at least this share at or below it."""
    return float(series[name][int(np.searchsorted(series["share"], share - 1e-9))])
