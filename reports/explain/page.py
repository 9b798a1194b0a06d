"""The page of an explained step: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reports.explain.text import (
    PEAK_NAMES,
    account,
    amount,
    amounts_of,
    answer_text,
    by_evidence,
    intensity,
    precision_cells,
    quality_lines,
    step_text,
    system_text,
)
from reports.numbers import duration, percent
from reports.svg import (
    BLUE,
    GRAY,
    INK,
    MUTED,
    ORANGE,
    VERMILION,
    VIOLET,
    WIDTH_IN,
    Plot,
    drawing,
    log_axis,
    render,
)
from reports.templates import Column, Tile, render_page, save_page

_COLORS = {"compute": VERMILION, "memory": BLUE, "launch": GRAY, "network": ORANGE}
_LINES = {
    "bf16_flop_per_s": "-",
    "fp8_flop_per_s": "--",
    "int8_op_per_s": ":",
    "fp4_flop_per_s": "-.",
    "int4_op_per_s": "-.",
}
# Operators with a smaller share of the step's time are drawn without a name.
_NAMED = 0.03
# Most names that fit above each other in the height of the plot.
_NAMES_HIGH = 24


def roofline_plot(facts: Mapping[str, Any]) -> Plot | None:
    """Draw the operators as points under the roofs of the device; None if no operator computes."""
    rows = [row for row in facts["operators"] if row["intensity"] and row["flops"]]
    if not rows:
        return None
    speeds = [row["flops"] / row["seconds"] for row in rows]
    ridges = facts["ridge_flops_per_byte"]
    low_x = min(0.5, min(row["intensity"] for row in rows) / 1.5)
    high_x = 3 * max(*ridges.values(), *(row["intensity"] for row in rows))
    top = max(facts["peaks_flop_per_s"].values())
    low_y = min(*speeds, low_x * facts["hbm_bytes_per_s"]) / 1.5
    with drawing(WIDTH_IN, 4.2) as figure:
        axes = figure.subplots()
        log_axis(axes, low_x, high_x, lambda value: f"{value:,g}")
        log_axis(axes, low_y, 2.5 * top, lambda value: f"{amount(value)}FLOP/s", vertical=True)
        drawn: set[float] = set()
        for peak, ridge in sorted(ridges.items(), key=lambda item: item[1]):
            height = facts["peaks_flop_per_s"][peak]
            same = [n for n, r in ridges.items() if r == ridge]
            if ridge in drawn:
                continue
            drawn.add(ridge)
            axes.plot([ridge, high_x], [height, height], color=INK, lw=1, ls=_LINES[peak])
            axes.plot([ridge], [height], marker="D", ms=4, color=INK, ls="none")
            words = " and ".join(PEAK_NAMES[name] for name in same)
            axes.annotate(
                f"{words}, ridge at {ridge:,.0f}",
                (high_x, height),
                (-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=MUTED,
            )
        slope = np.array([low_x, max(ridges.values())])
        axes.plot(slope, slope * facts["hbm_bytes_per_s"], color=INK, lw=1)
        for bound, color in _COLORS.items():
            chosen = [(r, s) for r, s in zip(rows, speeds, strict=True) if r["bound"] == bound]
            if not chosen:
                continue
            axes.scatter(
                [row["intensity"] for row, _ in chosen],
                [speed for _, speed in chosen],
                s=[20 + 400 * row["share"] for row, _ in chosen],
                color=color,
                alpha=0.75,
                edgecolor="none",
                label=f"bound by {bound}",
            )
        span = np.log(2.5 * top / low_y) / _NAMES_HIGH
        below = np.inf
        # From the top down, move a name below the one above it if they would overlap.
        for speed, row in sorted(zip(speeds, rows, strict=True), key=lambda pair: -pair[0]):
            if row["share"] < _NAMED:
                continue
            place = min(np.log(speed), below - span)
            below = place
            axes.annotate(
                f"{row['name']} {duration(row['seconds'])}",
                (row["intensity"], np.exp(place)),
                (14, -3),
                textcoords="offset points",
                fontsize=8,
                color=VIOLET,
            )
        axes.set_xlabel("FLOPs a byte of device memory")
        axes.legend(loc="lower right")
        svg = render(figure, "roofline", f"Roofline of one step: {system_text(facts)}")
    return Plot(
        "roofline",
        "Roofline",
        svg,
        "Lines are what the datasheet allows, diamonds the ridge points; each point is an operator "
        "with all its calls, its area the share of the step's GPU time. What lies below the lines "
        "is lost to efficiency, launches and half-filled tiles. Operators that compute nothing "
        "(norms, copies, collectives) are in the table alone.",
    )


_TIMES = (
    Column("Operator"),
    Column("Calls", "n"),
    Column("Time", "n"),
    Column("Share", "n"),
    Column("Bound by"),
    Column("Accounts", "over"),
    Column("Evidence", "tags"),
)
_AMOUNTS = (
    Column("Operator"),
    Column("FLOP", "n"),
    Column("Weights", "n"),
    Column("State", "n"),
    Column("Activations", "n"),
    Column("Communication", "n"),
    Column("FLOP/byte", "n"),
)


def write_roofline_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path. Raises `ScenarioError` if the file cannot be written."""
    return save_page(render_roofline(facts), path)


def render_roofline(facts: Mapping[str, Any]) -> str:
    """Render the page from the facts returned by ``scenarios.explain_step``."""
    plot = roofline_plot(facts)
    totals = facts["totals"]
    return render_page(
        "explain/page.html.j2",
        plots={plot.name: plot} if plot else {},
        title=f"One step of {facts['model']}",
        eyebrow="One engine step, explained",
        heading=step_text(facts),
        answer=answer_text(facts),
        reason=system_text(facts),
        version=facts["fleetcast_version"],
        tiles=_tiles(facts),
        evidence=by_evidence(facts),
        time_columns=_TIMES,
        times=[_times(row) for row in facts["operators"]],
        times_total=["all", f"{totals['calls']:,}", duration(totals["seconds"]), "100%", *[""] * 3],
        amount_columns=_AMOUNTS,
        amounts=[
            [row["name"], *amounts_of(row), intensity(row["intensity"])]
            for row in facts["operators"]
        ],
        amounts_total=["all", *amounts_of(totals), ""],
        account_columns=(Column("Account"), Column("Time", "n"), Column("Share", "n")),
        accounts=[
            (account(name), duration(s), percent(s / sum(facts["accounts_s"].values())))
            for name, s in facts["accounts_s"].items()
            if s
        ],
        precision_columns=(
            Column("Number format"),
            Column("Bits", "n"),
            Column("Multiplied in"),
            Column("Unpacking", "n"),
            Column("16 bits faster from", "n"),
        ),
        precision=precision_cells(facts),
        remarks=[*quality_lines(facts), *(f"{note}." for note in facts["notes"])],
        host=[(name, duration(seconds)) for name, seconds in facts["host_s"].items()],
        pace=f"From step to step {duration(facts['step_s'])}, bound by the {facts['bound_by']}; "
        f"async scheduling {'on' if facts['async_scheduling'] else 'off'}.",
        constant_columns=(
            Column("Constant"),
            Column("Value", "n"),
            Column("Of GPU time", "n"),
            Column("Evidence", "tags"),
            Column("Source", "over"),
        ),
        constants=[
            (c["constant"], f"{c['value']:.4g}", percent(c["share"]), c["label"], c["source"])
            for c in facts["constants"]
        ],
    )


def _times(row: Mapping[str, Any]) -> list[str]:
    return [
        row["name"],
        f"{row['calls']:,}",
        duration(row["seconds"]),
        percent(row["share"]),
        f"compute ({PEAK_NAMES[row['peak']]})" if row["bound"] == "compute" else row["bound"],
        ", ".join(account(name) for name in row["accounts"]),
        row["evidence"],
    ]


def _tiles(facts: Mapping[str, Any]) -> list[Tile]:
    totals = facts["totals"]
    moved = totals["weight_bytes"] + totals["state_bytes"] + totals["activation_bytes"]
    gpu_s = totals["seconds"]
    peak = facts["peaks_flop_per_s"]["bf16_flop_per_s"]
    return [
        Tile("GPU time", duration(gpu_s), "one rank"),
        Tile("From step to step", duration(facts["step_s"]), f"bound by the {facts['bound_by']}"),
        Tile(
            "Memory bandwidth",
            percent(moved / gpu_s / facts["hbm_bytes_per_s"]),
            f"{amount(moved)}B moved",
        ),
        Tile(
            "bf16 peak", percent(totals["flops"] / gpu_s / peak), f"{amount(totals['flops'])}FLOP"
        ),
    ]
