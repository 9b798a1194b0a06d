"""Figures of a plan: what more money buys, and the load that each ranked fleet carries."""

from __future__ import annotations

from typing import Any

from reports import svg
from reports.numbers import whole_percent
from reports.plan.answer import Content, level_text, usd
from reports.svg import Plot, Sheet

_COLORS = (svg.BLUE, svg.ORANGE, svg.GREEN, svg.VIOLET, svg.PINK, svg.GRAY)


def front_figure(content: Content, sheet: Sheet) -> Plot | None:
    """Draw cost against the latency nearest to its target, for every fleet that meets the
    targets."""
    rows = content["fleets"]
    if len(rows) < 2:
        return None
    names = list(dict.fromkeys(row["name"] for row in rows))
    with sheet.drawing(3.6) as figure:
        axes = figure.subplots()
        best = [row for row in rows if row["on_front"]]
        axes.plot(
            [row["usd_per_h"] for row in best],
            [row["of_target"] for row in best],
            color=svg.MUTED,
            lw=1.0,
            drawstyle="steps-post",
        )
        for name, color in zip(names, (*_COLORS, *[svg.SILVER] * len(names)), strict=False):
            own = [row for row in rows if row["name"] == name]
            axes.scatter(
                [row["usd_per_h"] for row in own],
                [row["of_target"] for row in own],
                s=[42 if row["on_front"] else 16 for row in own],
                color=color,
                label=name,
                zorder=3,
            )
            for row in own:
                axes.annotate(
                    f"{row['units']:,}",
                    (row["usd_per_h"], row["of_target"]),
                    xytext=(5, 4),
                    textcoords="offset points",
                    fontsize=8,
                    color=svg.MUTED,
                )
        axes.axhline(1.0, color=svg.VERMILION, lw=1.1, ls=(0, (4, 3)))
        axes.set_ylim(0, 1.08)
        axes.set_xlim(left=0)
        axes.set_xlabel("$ an hour")
        axes.set_ylabel("of its target")
        axes.yaxis.set_major_formatter(lambda value, _: whole_percent(value))
        figure.legend(
            loc="outside lower left", ncols=1 if sheet.is_narrow or _is_long(names) else 3
        )
        said = ", ".join(
            f"{row['units']} x {row['name']} {usd(row['usd_per_h'])}: "
            f"{whole_percent(row['of_target'])}"
            for row in best
        )
        alt = f"Cost against latency. On the front: {said}."
        caption = (
            "The percentile that comes nearest to its target, as a share of it; lower is better. "
            "Large points: nothing that was simulated is both cheaper and faster. Numbers are "
            "replicas, or multiples of a ratio. Fleets larger than they need be were simulated "
            "once."
        )
        return sheet.plot(figure, "plan-front", "What more money buys", alt, caption)


def _is_long(names: list[str]) -> bool:
    return max(map(len, names)) > 30


def carried_figure(content: Content, sheet: Sheet) -> Plot | None:
    """Draw the planned load and the load that each ranked fleet carries, with its interval."""
    rows: list[dict[str, Any]] = [one for one in content["ranked"] if one["capacity"] is not None]
    if not rows:
        return None
    planned = content["question"]["level"]
    with sheet.drawing(0.9 + 0.42 * len(rows)) as figure:
        axes = figure.subplots()
        at = range(len(rows))[::-1]
        levels = [row["capacity"] for row in rows]
        spread = [
            [row["capacity"] - row["interval"][0] for row in rows],
            [row["interval"][1] - row["capacity"] for row in rows],
        ]
        bar = 0.36 if sheet.is_narrow else 0.6
        axes.barh(at, levels, color=svg.SKY, height=bar, xerr=spread, ecolor=svg.INK, capsize=2)
        for y, row in zip(at, rows, strict=True):
            text = (
                f"{row['units']:,} \N{MULTIPLICATION SIGN} {row['name']}, {usd(row['usd_per_h'])}/h"
            )
            # a narrow bar has no room for its name, which stands above it
            place = (0, y + bar / 2) if sheet.is_narrow else (0, y)
            axes.annotate(
                text,
                place,
                xytext=(0, 2) if sheet.is_narrow else (5, 0),
                textcoords="offset points",
                va="bottom" if sheet.is_narrow else "center",
                fontsize=8.5,
            )
        axes.axvline(planned, color=svg.VERMILION, lw=1.2)
        axes.set_yticks([])
        axes.set_xlim(0, max([*(row["interval"][1] for row in rows), planned]) * 1.08)
        axes.set_xlabel(content["question"]["unit"])
        said = ", ".join(f"{row['name']}: {level_text(content, row['capacity'])}" for row in rows)
        alt = f"Planned for {level_text(content, planned)}. {said}."
        caption = (
            "The highest load at which each ranked fleet keeps the targets, with its 95% interval. "
            f"The line is what is planned for, {level_text(content, planned)}."
        )
        title = "Load that the ranked fleets carry"
        return sheet.plot(figure, "plan-carried", title, alt, caption)
