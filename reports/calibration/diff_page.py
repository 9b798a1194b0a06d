"""The page of two calibrations compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reports.calibration.diff_text import answer_text, pair_name, reasons
from reports.calibration.words import shape_text
from reports.parts import Column
from reports.svg import BLUE, INK, WIDTH_IN, Plot, drawing, duration_axis, render
from reports.templates import render_page, save_page
from reports.words import duration

_PAIRS = (
    Column("Kernels"),
    Column("Shapes", "n"),
    Column("Median", "n"),
    Column("10th to 90th percentile", "n"),
    Column("Why", "over"),
)
_WORST = (Column("Kernels"), Column("Shape", "over"), Column("First", "n"), Column("Second", "n"))


def write_diff_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page. Raises ScenarioError where the file cannot be written."""
    return save_page(render_diff(facts), path)


def render_diff(facts: Mapping[str, Any]) -> str:
    """The page as text, from the facts of ``scenarios.calibration.diff``."""
    pairs = facts["pairs"]
    shared, apart = reasons(facts)
    plots = [_ratio_plot(facts, pair, place) for place, pair in enumerate(pairs)]
    alone = [
        f"In {facts[side]} alone: {', '.join(facts[f'only_{side}'])}."
        for side in ("left", "right")
        if facts[f"only_{side}"]
    ]
    return render_page(
        "calibration/diff.html.j2",
        plots={plot.name: plot for plot in plots},
        title=f"{facts['left']} against {facts['right']}",
        eyebrow="Calibrations compared",
        heading=f"{facts['left']} against {facts['right']}",
        answer=answer_text(facts),
        reason=" ".join(alone),
        version=facts["fleetcast_version"],
        pair_columns=_PAIRS,
        pairs=[
            [
                pair_name(pair),
                f"{pair['shapes']:,}",
                f"{pair['median']:.2f}",
                f"{pair['p10']:.2f} to {pair['p90']:.2f}",
                "; ".join(why),
            ]
            for pair, why in zip(pairs, apart, strict=True)
        ],
        shared=f"All differ in {'; '.join(shared)}." if shared else "",
        worst_columns=_WORST,
        worst=[
            [
                pair_name(pair),
                shape_text(row["shape"]),
                duration(row["left_s"]),
                duration(row["right_s"]),
            ]
            for pair in pairs
            for row in pair["worst"]
        ],
    )


def _ratio_plot(facts: Mapping[str, Any], pair: Mapping[str, Any], place: int) -> Plot:
    seconds, ratios = (np.array(values) for values in pair["points"])
    with drawing(WIDTH_IN, 2.3) as figure:
        axes = figure.subplots()
        duration_axis(axes, float(seconds.min()), float(seconds.max()))
        axes.axhline(1.0, color=INK, lw=0.8)
        axes.scatter(seconds, ratios, s=8, color=BLUE, alpha=0.5, edgecolor="none")
        top = float(np.quantile(ratios, 0.99))
        axes.set_ylim(0, max(1.3, 1.1 * top))
        axes.set_xlabel(f"time in {facts['left']}")
        axes.set_ylabel("ratio")
        name = f"ratio-{place}"
        svg = render(figure, name, f"Ratio of times by time: {pair_name(pair)}")
    return Plot(
        name,
        pair_name(pair),
        svg,
        f"Times of {facts['left']} over those of {facts['right']}, a point a shape.",
    )
