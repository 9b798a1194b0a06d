"""Figures of a capacity search: attainment, latencies and accounts against load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reports import svg
from reports.capacity.answer import Content, amount, level_text, tail_text
from reports.numbers import (
    LATENCY_LABELS,
    duration,
    humanised,
    latencies_beside,
    share_text,
    target,
)
from reports.run.figures import ACCOUNT_COLORS
from reports.svg import Plot, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NINES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
_MOST = 0.99995  # drawn here if every request was good, because the number of nines is then unknown
# height of the accounts figure, as a multiple of the target or of the value at the capacity
_ROOM = 2.2
_BEYOND = 1.3  # highest load in the accounts figure, as a multiple of the capacity


def attainment_curve(content: Content, sheet: Sheet) -> Plot | None:
    """Draw attainment against load on a scale that gives each further nine equal height."""
    wanted, rows = content["question"]["attainment"], content["curve"]
    if wanted is None or len(rows) < 2:
        return None
    answer = content["answer"]
    x = np.array([row["level"] for row in rows])
    share = np.array([row["attainment"] or 0.0 for row in rows])
    bounds = np.array([row["interval"] or (0.0, 0.0) for row in rows])
    with sheet.drawing(3.4) as figure:
        axes = figure.subplots()
        y, low, high = (_nines(values) for values in (share, bounds[:, 0], bounds[:, 1]))
        spread = np.maximum([y - low, high - y], 0)
        axes.errorbar(x, y, yerr=spread, color=svg.BLUE, marker="o", ms=4, lw=1.5, capsize=2)
        axes.axhline(_nines(wanted), color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
        axes.annotate(
            f"target {share_text(wanted)}",
            (1, _nines(wanted)),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color=svg.VERMILION,
        )
        _load_axis(axes, content)
        _mark_capacity(axes, content, label=True)
        axes.set_yticks([_nines(n) for n in _NINES], [share_text(n) for n in _NINES])
        axes.set_ylim(-0.05, _nines(_MOST) + 0.15)
        axes.set_ylabel("requests that meet the SLO")
        said = ", ".join(
            f"{share_text(row['attainment'] or 0.0)} at {level_text(content, row['level'])}"
            for row in rows
        )
        alt = f"Attainment against {content['question']['unit']}: {said}."
        caption = (
            "Bars are 95% intervals, over replications or, where there are few, over stretches of "
            "a run. Each nine takes as much height as the one before; loads at which every request "
            "was good are at the top."
        )
        if answer["capacity"] is not None:
            caption += f" The line is the capacity, {amount(content, answer['capacity'])}."
            if answer["model_error"]:
                caption += " Shaded: where it may lie if the model is off (90%)."
        title = "Attainment against load"
        return sheet.plot(figure, "capacity-attainment", title, alt, caption)


def latency_curves(content: Content, sheet: Sheet) -> Plot | None:
    """Draw median, p90 and p99 of each latency against load, one panel per latency."""
    targets, rows = content["question"]["targets"], content["curve"]
    names = [n for n in latencies_beside(targets) if any(row["latency_s"].get(n) for row in rows)]
    if not names or len(rows) < 2:
        return None
    said = []
    with sheet.drawing(0.5 + 1.8 * len(names) if sheet.is_narrow else 2.9) as figure:
        panels = sheet.panels(figure, len(names))
        figure.set_layout_engine("constrained", wspace=0.06)
        for axes, name in zip(panels, names, strict=True):
            known = [row for row in rows if row["latency_s"].get(name)]
            x = [row["level"] for row in known]
            shades = (("p50", svg.SKY), ("p90", svg.BLUE), ("p99", svg.VIOLET))
            for statistic, color in shades:
                values = [row["latency_s"][name][statistic] for row in known]
                axes.plot(x, values, color=color, marker="o", ms=2.5, label=statistic)
            lows = [row["latency_s"][name]["p50"] for row in known]
            highs = [row["latency_s"][name]["p99"] for row in known]
            svg.duration_axis(axes, min(lows), max([*highs, targets.get(name, 0)]), vertical=True)
            if name in targets:
                axes.axhline(targets[name], color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
            axes.set_title(LATENCY_LABELS[name])
            _load_axis(axes, content)
            _mark_capacity(axes, content)
            said.append(
                f"{LATENCY_LABELS[name]} p99 from {duration(highs[0])} to {duration(highs[-1])}."
            )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=3)
        dashed = ", ".join(f"{LATENCY_LABELS[n]} {target(s)}" for n, s in targets.items())
        caption = "Finished requests. Logarithmic scale."
        caption += f" Dashed: the targets ({dashed})." if dashed else ""
        caption += " The upright line is the capacity." if content["answer"]["capacity"] else ""
        alt = f"Latency against load. {' '.join(said)}"
        return sheet.plot(figure, "capacity-latency", "Latency against load", alt, caption)


def account_curve(content: Content, sheet: Sheet) -> Plot | None:
    """Draw the time of the slowest requests by account against load, with the target."""
    binding, targets = content["binding"], content["question"]["targets"]
    metric, capacity = binding["metric"], content["answer"]["capacity"]
    rows = [row for row in content["curve"] if row["accounts_s"].get(metric)]
    if capacity is not None:
        rows = [row for row in rows if row["level"] <= capacity * _BEYOND]
    if len(rows) < 2:
        return None
    x = [row["level"] for row in rows]
    tails = [row["accounts_s"][metric]["tail"] for row in rows]
    highest = max(max(tail.values(), default=0.0) for tail in tails)
    names = [n for n in tails[0] if any(tail[n] > 0.002 * highest for tail in tails)]
    unit, per_second = ("ms", 1e3) if binding_seconds(binding) < 1 else ("s", 1.0)
    with sheet.drawing(4.0 if sheet.is_narrow else 3.5) as figure:
        axes = figure.subplots()
        stacks = [[max(tail[name], 0.0) * per_second for tail in tails] for name in names]
        colors = [ACCOUNT_COLORS.get(name, svg.SILVER) for name in names]
        axes.stackplot(
            x,
            stacks,
            colors=colors,
            labels=[humanised(name) for name in names],
            edgecolor=svg.PAPER,
            linewidth=0.5,
        )
        top = max(binding_seconds(binding), targets.get(metric, 0.0)) * _ROOM * per_second
        axes.set_ylim(0, min(top, 1.05 * max(sum(column) for column in zip(*stacks, strict=True))))
        if metric in targets:
            axes.axhline(targets[metric] * per_second, color=svg.INK, lw=1.1, ls=(0, (4, 3)))
        _load_axis(axes, content)
        _mark_capacity(axes, content, bands=False)
        axes.set_xlim(x[0], x[-1])
        axes.set_ylabel(f"{LATENCY_LABELS[metric]} ({unit})")
        columns = 2 if sheet.is_narrow else 4
        figure.legend(loc="outside lower left", ncols=columns, handlelength=1.0, handleheight=1.0)
        alt = f"Accounts of {LATENCY_LABELS[metric]} against load. {binding['sentence']}"
        caption = f"{tail_text(content)}, mean by account"
        if content["question"]["attainment"] is not None:
            caption += "; they are as many as may miss the SLO"
        caption += ". Dashed: the target." if metric in targets else "."
        title = f"What fills the {LATENCY_LABELS[metric]} of the slowest"
        return sheet.plot(figure, "capacity-accounts", title, alt, caption)


def binding_seconds(binding: dict[str, Any]) -> float:
    """Return the mean of the binding metric in seconds over the slowest requests, at the
    capacity."""
    return float(sum(row["seconds"] for row in binding["accounts"]))


def _nines(share: Any) -> Any:
    """Return the number of nines of a share: 0 for none, 1 for 90%, 2 for 99%."""
    return -np.log10(1 - np.clip(share, 0, _MOST))


def _load_axis(axes: Axes, content: Content) -> None:
    """Scale the axis of loads: linear for a rate, powers of two for users."""
    question = content["question"]
    if question["vary"] in ("users", "max_concurrency"):
        from matplotlib.ticker import FuncFormatter, NullLocator

        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, None)
    axes.set_xlabel(question["unit"])


def _mark_capacity(
    axes: Axes, content: Content, *, label: bool = False, bands: bool = True
) -> None:
    """Mark the capacity with a vertical line, the model's error around it, and saturation."""
    answer = content["answer"]
    capacity = answer["capacity"]
    if capacity is None:
        return
    error = answer["model_error"]
    if error and bands:
        axes.axvspan(*error["interval"], color=svg.GREEN, alpha=0.12, lw=0)
    axes.axvline(capacity, color=svg.GREEN, lw=1.3)
    if not label:
        return
    marks = [(capacity, level_text(content, capacity), svg.GREEN)]
    saturation = answer["saturation_per_s"]
    if saturation and content["question"]["vary"] == "rate_per_s":
        axes.axvline(saturation, color=svg.MUTED, lw=1.1, ls=(0, (1, 2)))
        marks.append((saturation, f"saturation {level_text(content, saturation)}", svg.MUTED))
    for at, text, color in marks:
        axes.annotate(
            text,
            (at, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -9),
            textcoords="offset points",
            fontsize=8.5,
            color=color,
        )
