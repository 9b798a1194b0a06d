"""The page of an explained step: one HTML file that holds all it shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.parts import Column, Tile
from reports.roofline.figure import roofline_plot
from reports.roofline.words import (
    PEAK_NAMES,
    account,
    amount,
    answer_text,
    by_evidence,
    intensity,
    precision_cells,
    quality_lines,
    step_text,
    system_text,
)
from reports.templates import render_page, save_page
from reports.words import duration, percent

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
    """Write the page. Raises ScenarioError where the file cannot be written."""
    return save_page(render_roofline(facts), path)


def render_roofline(facts: Mapping[str, Any]) -> str:
    """The page as text, from the facts of ``scenarios.explain_step``."""
    plot = roofline_plot(facts)
    totals = facts["totals"]
    return render_page(
        "roofline/page.html.j2",
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
            [row["name"], *_amounts(row), intensity(row["intensity"])] for row in facts["operators"]
        ],
        amounts_total=["all", *_amounts(totals), ""],
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


def _amounts(row: Mapping[str, Any]) -> list[str]:
    kinds = ("flops", "weight_bytes", "state_bytes", "activation_bytes", "comm_bytes")
    return [amount(row[kind]) for kind in kinds]


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
