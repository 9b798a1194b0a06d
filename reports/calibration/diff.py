"""The report of a comparison of two calibrations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reports import svg
from reports.calibration.words import formats_of, shape_text
from reports.document import (
    Block,
    Cell,
    Column,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tone,
    numbers,
)
from reports.numbers import duration
from reports.svg import Plot, Sheet


def write_diff_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path. Raises `ScenarioError` if the file cannot be written."""
    from reports.html import save_page

    return save_page(diff_report(facts), path)


def diff_report(facts: Mapping[str, Any]) -> Report:
    """Return the report of the facts that ``scenarios.calibration.diff`` returns."""
    pairs = facts["pairs"]
    figures = [Figure(partial(_ratios, facts, pair, place)) for place, pair in enumerate(pairs)]
    alone = [
        f"In {facts[side]} alone, not in {facts[other]}: {', '.join(facts[f'only_{side}'])}."
        for side, other in (("left", "right"), ("right", "left"))
        if facts[f"only_{side}"]
    ]
    return Report(
        eyebrow="Calibrations compared",
        heading=f"{facts['left']} against {facts['right']}",
        headline=_answer(facts),
        sentences=[Text(text, on="page") for text in alone],
        sections=[
            _pairs(facts),
            _why(facts),
            Section("ratios", "By shape", figures, on="page"),
            _worst(pairs),
        ],
        closing=alone,
        version=facts["fleetcast_version"],
        width=160,
        pipe_width=None,
    )


def _answer(facts: Mapping[str, Any]) -> str:
    pairs = facts["pairs"]
    shapes = sum(pair["shapes"] for pair in pairs)
    ratios = sorted(pair["median"] for pair in pairs)
    return (
        f"On {facts['gpu']}, {facts['left']} takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as "
        f"long as {facts['right']} (medians of {len(pairs)} pairs of tables, {shapes:,} shapes)."
    )


def _pairs(facts: Mapping[str, Any]) -> Section:
    rows: list[Row] = [
        [
            _name(pair),
            f"{pair['shapes']:,}",
            _ratio(pair["median"]),
            f"{pair['p10']:.2f} to {pair['p90']:.2f}",
        ]
        for pair in facts["pairs"]
    ]
    return Section(
        "pairs",
        f"Times of {facts['left']} over those of {facts['right']}",
        [
            Table(
                [
                    Column("Kernels", terminal=""),
                    *numbers("Shapes", "Median"),
                    Column("80% lie in", "number", terminal="80% lie in"),
                ],
                rows,
            ),
            Text(
                "At every shape of the first that lies inside the range of the second, read off "
                "its table.",
                "note",
            ),
        ],
    )


def _ratio(ratio: float) -> Cell:
    apart = max(ratio, 1 / ratio) - 1
    tone: Tone = "good" if apart <= 0.1 else "fair" if apart <= 0.25 else "bad"
    return Cell(f"{ratio:.2f}", tone)


def _why(facts: Mapping[str, Any]) -> Section:
    """Say why the times differ: what all pairs share, and what is each pair's own."""
    whys = [pair["why"] for pair in facts["pairs"]]
    shared = [why for why in whys[0] if all(why in other for other in whys)]
    shared = shared if len(whys) > 1 else []
    blocks: list[Block] = [Text(f"All differ in {'; '.join(shared)}.")] if shared else []
    for pair, of_pair in zip(facts["pairs"], whys, strict=True):
        own = [why for why in of_pair if why not in shared]
        blocks.append(Text(f"{_name(pair)}: {'; '.join(own)}."))
    return Section("why", "Why", blocks)


def _worst(pairs: list[Mapping[str, Any]]) -> Section:
    said = [
        Text(
            f"{_name(pair)}: {duration(worst['left_s'])} and {duration(worst['right_s'])} at "
            f"{shape_text(worst['shape'])}",
            on="terminal",
        )
        for pair in pairs
        for worst in pair["worst"][:1]
    ]
    rows = [
        [
            _name(pair),
            shape_text(row["shape"]),
            duration(row["left_s"]),
            duration(row["right_s"]),
        ]
        for pair in pairs
        for row in pair["worst"]
    ]
    columns = [Column("Kernels"), Column("Shape", "note"), *numbers("First", "Second")]
    return Section("worst", "Where they part most", [*said, Table(columns, rows, on="page")])


def _name(pair: Mapping[str, Any]) -> str:
    """Name a pair of tables: family, formats, variants, and the kernel of the first."""
    variants = " or ".join(dict.fromkeys(filter(None, pair["variants"])))
    parts = (pair["family"], formats_of(pair), variants, f"({pair['kernels'][0]})")
    return " ".join(part for part in parts if part)


def _ratios(facts: Mapping[str, Any], pair: Mapping[str, Any], place: int, sheet: Sheet) -> Plot:
    seconds, ratios = (np.array(values) for values in pair["points"])
    with sheet.drawing(2.3) as figure:
        axes = figure.subplots()
        svg.duration_axis(axes, float(seconds.min()), float(seconds.max()))
        axes.axhline(1.0, color=svg.INK, lw=0.8)
        axes.scatter(seconds, ratios, s=8, color=svg.BLUE, alpha=0.5, edgecolor="none")
        axes.set_ylim(0, max(1.3, 1.1 * float(np.quantile(ratios, 0.99))))
        axes.set_xlabel(f"time in {facts['left']}")
        axes.set_ylabel("ratio")
        alt = (
            f"Ratio of times by time of {len(ratios):,} shapes of {_name(pair)}: median "
            f"{pair['median']:.2f}, 80% from {pair['p10']:.2f} to {pair['p90']:.2f}."
        )
        caption = f"Times of {facts['left']} over those of {facts['right']}, a point a shape."
        return sheet.plot(figure, f"ratio-{place}", _name(pair), alt, caption)
