"""Figures of a what-if: accounts that changed, latency distributions, rates by variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reports import svg
from reports.numbers import (
    LATENCY_LABELS,
    duration,
    humanised,
    is_number,
    listed,
    number,
    target,
)
from reports.svg import Plot, Sheet
from reports.whatif.words import Content, Variant, label_of, ran

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = (*svg.SERIES, svg.VIOLET)
_LESS, _MORE, _WHOLE = svg.GREEN, svg.VERMILION, svg.GRAY
_A_ROW = 3
_SHARES = ([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
_LEAST_SHOWN = 1e-3
_RATES = ("saturation", "saturation_per_gpu", "goodput", "goodput_per_gpu", "output_throughput")


class AccountDelta(NamedTuple):
    """One time account: the baseline's mean and each variant's difference, in seconds."""

    account: str
    label: str
    base_s: float
    deltas_s: tuple[float, ...]


def account_deltas(content: Content, of: str = "e2e") -> list[AccountDelta]:
    """Return the accounts with time in them, in the order of the baseline. A variant's deltas
    sum to its total change."""
    base = content["baseline"]["accounts_ns"][of]
    others = [variant["accounts_ns"][of] for variant in ran(content)]
    rows = []
    for account, base_ns in base.items():
        of_others = [accounts.get(account) for accounts in others]
        if not base_ns and not any(of_others):
            continue
        deltas_s = tuple((ns - base_ns) / 1e9 if ns is not None else 0.0 for ns in of_others)
        rows.append(AccountDelta(account, humanised(account), base_ns / 1e9, deltas_s))
    return rows


def waterfall(content: Content, of: str, sheet: Sheet) -> Plot | None:
    """Draw the accounts that lead from the baseline's mean E2E or TTFT to each variant's."""
    variants = ran(content)
    every = account_deltas(content, of)
    if not every or not variants:
        return None
    before_s = sum(row.base_s for row in every)
    least_s = _LEAST_SHOWN * before_s
    rows = [row for row in every if max(map(abs, row.deltas_s)) > least_s]
    label = LATENCY_LABELS[of]
    columns = 2 if len(variants) == 4 else min(_A_ROW, len(variants))
    columns = 1 if sheet.is_narrow else columns
    panel_rows = -(-len(variants) // columns)
    said = []
    with sheet.drawing(0.2 + (0.75 + 0.22 * (len(rows) + 2)) * panel_rows) as figure:
        panels = figure.subplots(panel_rows, columns, sharex=True, squeeze=False)
        for index, axes in enumerate(panels.ravel()):
            if index >= len(variants):
                axes.set_axis_off()
                continue
            deltas_s = [row.deltas_s[index] for row in rows]
            rest_s = sum(row.deltas_s[index] for row in every) - sum(deltas_s)
            name = variants[index]["name"]
            after_s = _draw_waterfall(axes, before_s, deltas_s, rest_s)
            axes.set_title(name, fontsize=8.5)
            axes.tick_params(axis="x", labelbottom=True)
            names = ["baseline", *(row.label for row in rows), "changed"]
            is_first = index % columns == 0
            axes.set_yticks(range(len(names)), names if is_first else [""] * len(names))
            axes.tick_params(axis="y", labelcolor=svg.INK, labelsize=8.5)
            said.append(f"{name}: {duration(before_s)} becomes {duration(after_s)}.")
        alt = f"Waterfall of mean {label} by account. {' '.join(said)}"
        caption = (
            f"From the baseline's mean {label} to the variant's, account by account: green took "
            "time away, red added it. Each bar starts where the one above it ended. Accounts that "
            "moved by less than a thousandth of the whole are left out."
        )
        return sheet.plot(figure, f"waterfall-{of}", f"What moved mean {label}", alt, caption)


def distributions(content: Content, sheet: Sheet) -> Plot | None:
    """Draw the latency distributions of the baseline and all variants in common panels."""
    every = [content["baseline"], *ran(content)]
    metrics = [m for m in ("ttft", "tpot", "e2e") if any(v["distributions_s"][m] for v in every)]
    if not metrics:
        return None
    shares = np.array(content["shares"])
    narrow_in = 1.8 * len(metrics) + 0.2 * len(every)
    with sheet.drawing(narrow_in if sheet.is_narrow else 3.1) as figure:
        panels = sheet.panels(figure, len(metrics), sharey=True)
        figure.set_layout_engine("constrained", wspace=0.05)
        for axes, metric in zip(panels, metrics, strict=True):
            shown = []
            for index, variant in enumerate(every):
                values_s = np.array(variant["distributions_s"][metric])
                if not len(values_s):
                    continue
                color = svg.INK if index == 0 else _COLORS[(index - 1) % len(_COLORS)]
                dashes: Any = (0, (4, 2)) if index == 0 else "-"
                axes.plot(values_s, shares, color=color, lw=1.5, ls=dashes, label=variant["name"])
                shown += [values_s[shares >= 0.005][0], values_s[shares <= 0.9995][-1]]
            svg.duration_axis(axes, max(min(shown), max(shown) / 1e4), max(shown))
            axes.set_ylim(0, 1.04)
            axes.set_yticks(*_SHARES)
            axes.set_title(LATENCY_LABELS[metric])
            _draw_target(axes, content, metric)
        panels[0].set_ylabel("share of requests")
        handles, labels = panels[0].get_legend_handles_labels()
        columns = 1 if sheet.is_narrow else 3
        figure.legend(handles, labels, loc="outside lower left", ncols=columns)
        alt = (
            f"Cumulative distributions of {listed(LATENCY_LABELS[m] for m in metrics)} of "
            f"{listed(v['name'] for v in every)}."
        )
        caption = (
            "Share of finished requests at or below a latency"
            + (", mean over the replications" if content["method"]["replications"] > 1 else "")
            + ". Logarithmic scale."
        )
        return sheet.plot(figure, "whatif-distributions", "Latency distributions", alt, caption)


def rates(content: Content, sheet: Sheet) -> Plot | None:
    """Draw saturation, goodput and throughput of every variant, in total and per GPU."""
    every = [content["baseline"], *ran(content)]
    keys = [key for key in _RATES if is_number(every[0]["values"].get(key))]
    if "goodput" in keys:
        keys = [key for key in keys if key != "output_throughput"]
    if not keys:
        return None
    said = []
    panel_in = 0.6 + 0.26 * len(every)
    with sheet.drawing(panel_in * (len(keys) if sheet.is_narrow else 1)) as figure:
        panels = sheet.panels(figure, len(keys), sharey=True)
        for axes, key in zip(panels, keys, strict=True):
            _draw_rates(axes, content, every, key)
            said.append(
                f"{label_of(key)}: "
                + ", ".join(
                    f"{v['name']} {number(v['values'].get(key), 'requests/s')}" for v in every
                )
            )
        panels[0].set_yticks(range(len(every)), [_broken(variant["name"]) for variant in every])
        panels[0].invert_yaxis()
        panels[0].tick_params(axis="y", labelcolor=svg.INK)
        caption = (
            "Saturation is the request rate at which the engines' batches are full, by estimate; "
            "goodput is what was answered within the SLO, and at this load no more than was asked. "
            "Lines on bars: the 95% interval of the difference from the baseline."
        )
        title, alt = "Capacity, in all and a GPU", f"{'; '.join(said)}."
        return sheet.plot(figure, "whatif-rates", title, alt, caption)


def _draw_waterfall(axes: Axes, before_s: float, deltas_s: list[float], rest_s: float) -> float:
    """Draw one panel and return where it ends. ``rest_s`` is the sum of the accounts without a
    bar."""
    at_s = before_s
    axes.barh(0, before_s, height=0.66, color=_WHOLE)
    for row, delta_s in enumerate(deltas_s, 1):
        color = _LESS if delta_s < 0 else _MORE
        axes.barh(row, delta_s, left=at_s, height=0.66, color=color)
        axes.plot([at_s, at_s], [row - 0.67, row + 0.33], color=svg.MUTED, lw=0.6)
        at_s += delta_s
    at_s += rest_s
    axes.barh(len(deltas_s) + 1, at_s, height=0.66, color=_WHOLE)
    axes.plot([at_s, at_s], [len(deltas_s) + 0.33, len(deltas_s) + 1.33], color=svg.MUTED, lw=0.6)
    ends = (0, before_s), (len(deltas_s) + 1, at_s)
    for row, value_s in ends:
        axes.annotate(
            duration(value_s),
            (0, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="#111111",
        )
    axes.set_ylim(len(deltas_s) + 1.6, -0.6)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda value, _: target(value) if value else "0")
    return at_s


def _draw_target(axes: Axes, content: Content, metric: str) -> None:
    target_s = (content["baseline"]["conditions"].get("slo") or {}).get(f"{metric}_s")
    low_s, high_s = axes.get_xlim()
    if is_number(target_s) and low_s < target_s < high_s:
        axes.axvline(target_s, color=svg.MUTED, lw=1.1, ls=(0, (1, 2)))
        axes.annotate(
            "SLO",
            (target_s, 0.03),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=svg.MUTED,
        )


def _draw_rates(axes: Axes, content: Content, every: list[Variant], key: str) -> None:
    highest = max(v["values"].get(key) or 0.0 for v in every)
    furthest = highest
    for row, variant in enumerate(every):
        value = variant["values"].get(key)
        if not is_number(value):
            continue
        color = _WHOLE if row == 0 else _COLORS[(row - 1) % len(_COLORS)]
        axes.barh(row, value, height=0.62, color=color)
        half = variant["deltas"][key]["half_width"] if row else None
        end = value
        if is_number(half) and half > 0.004 * highest:
            axes.plot([value - half, value + half], [row, row], color=svg.INK, lw=1.2)
            end += half
            furthest = max(furthest, end)
        axes.annotate(
            number(value, "requests/s"),
            (end, row),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_xlim(0, 1.28 * furthest or 1.0)
    axes.set_title(label_of(key))
    axes.set_xlabel("tokens/s" if key == "output_throughput" else "requests/s", fontsize=8)
    axes.grid(visible=False)
    axes.locator_params(axis="x", nbins=3)


def _broken(name: str) -> str:
    """Break a long setting into two lines after its ``=``."""
    head, sign, tail = name.partition("=")
    return f"{head}{sign}\n{tail}" if sign and len(name) > 18 else name
