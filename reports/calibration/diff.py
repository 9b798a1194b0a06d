"""Comparison of two calibrations, as terminal text and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reports.calibration.text import formats_of, shape_text
from reports.numbers import duration
from reports.svg import BLUE, INK, WIDTH_IN, Plot, drawing, duration_axis, render
from reports.templates import Column, render_page, save_page
from reports.terminal import Screen


def print_diff(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts returned by ``scenarios.calibration.diff``."""
    screen = screen or Screen(max_width=160)
    screen.say(answer_text(facts), "bold")
    screen.heading(f"Times of {facts['left']} over those of {facts['right']}")
    rows = [
        [
            pair_name(pair),
            f"{pair['shapes']:,}",
            _ratio(screen, pair["median"]),
            f"{pair['p10']:.2f} to {pair['p90']:.2f}",
        ]
        for pair in facts["pairs"]
    ]
    screen.table(["", "shapes", "median", "80% lie in"], rows)
    screen.say(
        "At every shape of the first that lies inside the range of the second, read off its table.",
        "dim",
    )
    screen.heading("Why")
    shared, apart = reasons(facts)
    if shared:
        screen.say(f"All differ in {'; '.join(shared)}.")
    for pair, why in zip(facts["pairs"], apart, strict=True):
        screen.say(f"{pair_name(pair)}: {'; '.join(why)}.")
    screen.heading("Where they part most")
    for pair in facts["pairs"]:
        worst = pair["worst"][0]
        screen.say(
            f"{pair_name(pair)}: {duration(worst['left_s'])} and {duration(worst['right_s'])} at "
            f"{shape_text(worst['shape'])}"
        )
    for side, other in (("left", "right"), ("right", "left")):
        if facts[f"only_{side}"]:
            screen.say("")
            screen.say(
                f"In {facts[side]} alone, not in {facts[other]}: "
                f"{', '.join(facts[f'only_{side}'])}.",
                "dim",
            )


def reasons(facts: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return why the times differ: the reasons shared by all pairs, and each pair's own."""
    whys = [pair["why"] for pair in facts["pairs"]]
    shared = [why for why in whys[0] if all(why in other for other in whys)]
    shared = shared if len(whys) > 1 else []
    return shared, [[why for why in of_pair if why not in shared] for of_pair in whys]


def answer_text(facts: Mapping[str, Any]) -> str:
    """Say in one sentence how far apart the two calibrations are."""
    pairs = facts["pairs"]
    shapes = sum(pair["shapes"] for pair in pairs)
    ratios = sorted(pair["median"] for pair in pairs)
    return (
        f"On {facts['gpu']}, {facts['left']} takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as "
        f"long as {facts['right']} (medians of {len(pairs)} pairs of tables, {shapes:,} shapes)."
    )


def pair_name(pair: Mapping[str, Any]) -> str:
    """Name a pair of tables: family, formats, variants, and the kernel of the first."""
    variants = " or ".join(dict.fromkeys(filter(None, pair["variants"])))
    parts = (pair["family"], formats_of(pair), variants, f"({pair['kernels'][0]})")
    return " ".join(part for part in parts if part)


def _ratio(screen: Screen, ratio: float) -> Any:
    apart = max(ratio, 1 / ratio) - 1
    style = "green" if apart <= 0.1 else "yellow" if apart <= 0.25 else "red"
    return screen.text(f"{ratio:.2f}", style)


_PAIRS = (
    Column("Kernels"),
    Column("Shapes", "n"),
    Column("Median", "n"),
    Column("10th to 90th percentile", "n"),
    Column("Why", "over"),
)
_WORST = (Column("Kernels"), Column("Shape", "over"), Column("First", "n"), Column("Second", "n"))


def write_diff_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path. Raises `ScenarioError` if the file cannot be written."""
    return save_page(render_diff(facts), path)


def render_diff(facts: Mapping[str, Any]) -> str:
    """Render the page from the facts returned by ``scenarios.calibration.diff``."""
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
