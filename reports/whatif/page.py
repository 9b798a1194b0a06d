"""The page of a what-if: one self-contained HTML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.numbers import duration
from reports.templates import Cell, Column, Tile, render_page
from reports.whatif.answer import (
    figure_of,
    find,
    heading,
    headline,
    method_text,
    per_gpu_sentence,
    slo_sentence,
    together_rows,
    together_sentence,
    why_sentence,
    zero_text,
)
from reports.whatif.facts import (
    Compared,
    Content,
    account_deltas,
    base_warnings,
    condition_changes,
    evidence_rows,
    figure_rows,
    ran,
    read_scenarios,
    read_whatif,
    refusals,
    settings_text,
    warning_rows,
)
from reports.whatif.figures import draw_whatif
from reports.whatif.words import change_text, label_of, spelled

Row = list[str | Cell]


def write_whatif_page(folder: Path | str) -> Path:
    """Write ``whatif.html`` into the folder of a what-if and return its path.

    The page needs no network and no script, and is identical for identical folders. Raises
    `ScenarioError` if a file is missing or cannot be read.
    """
    folder = Path(folder)
    content = read_whatif(folder)
    path = folder / "whatif.html"
    html = render_whatif(content, read_scenarios(folder, content))
    path.write_text(html, encoding="utf-8")
    return path


def render_whatif(content: Content, scenarios: Mapping[str, str]) -> str:
    """Render the page as HTML text. ``scenarios`` are YAML texts by variant."""
    names = [variant["name"] for variant in ran(content)]
    return render_page(
        "whatif/page.html.j2",
        "whatif/page.css.j2",
        plots=draw_whatif(content),
        title=f"{heading(content)}: what if",
        eyebrow="What if",
        heading=heading(content),
        answer=headline(content),
        reason=" ".join(
            text
            for text in (
                slo_sentence(content),
                per_gpu_sentence(content),
                together_sentence(content),
            )
            if text
        ),
        alerts=[f"{name} is refused: {reason}" for name, reason in refusals(content)],
        tiles=_tiles(content),
        version=content["fleetcast_version"],
        change_columns=[Column("Variant"), Column("Settings")],
        changes=[[v["name"], settings_text(v)] for v in content["variants"]],
        **_figure_table(content),
        **_account_table(content, names),
        together_columns=[
            Column("Figure"),
            Column("All together", "n"),
            Column("Product", "n"),
            Column("Difference", "n"),
            Column("In words"),
        ],
        together=[[*row] for row in together_rows(content)],
        warnings=_warnings(content),
        **_condition_table(content, names),
        evidence_columns=[
            Column("Variant"),
            Column("Weakest label", "tags"),
            Column("Share of simulated time", "over"),
        ],
        evidence=[[*row] for row in evidence_rows(content)],
        method=method_text(content),
        why=why_sentence(content),
        zero=zero_text(content),
        base_workload=content["baseline"]["conditions"].get("workload") or "",
        scenarios=scenarios,
    )


def _figure_table(content: Content) -> dict[str, Any]:
    rows = figure_rows(content, compact=False)
    with_product = any(row.product for row in rows)
    columns = [Column("Figure"), Column(""), Column("baseline", "n")]
    columns += [Column(_breakable(variant["name"]), "n") for variant in content["variants"]]
    columns += [Column("product of singles", "n")] if with_product else []
    table: list[Row] = []
    for row in rows:
        cells: Row = [row.label, row.unit, row.base]
        of_variants = iter(row.cells)
        for variant in content["variants"]:
            is_refused = variant["refused"] is not None
            cells.append(Cell("refused", "unsure") if is_refused else _cell(next(of_variants)))
        table.append([*cells, row.product] if with_product else cells)
    return {"figure_columns": columns, "figures": table}


def _cell(compared: Compared) -> Cell:
    if compared.unsure:
        return Cell(compared.value, "unsure", f"~ {compared.change}")
    tone = {"good": "gain", "bad": "loss"}.get(compared.tone, "")
    return Cell(compared.value, tone, compared.change)


def _account_table(content: Content, names: list[str]) -> dict[str, Any]:
    columns = [Column("Account"), Column("baseline", "n")]
    columns += [Column(_breakable(name), "n") for name in names]
    tables = {}
    for of, title in (("e2e", "End-to-end time"), ("ttft", "Time to first token")):
        rows = account_deltas(content, of)
        if not rows:
            continue
        body: list[Row] = [
            [
                row.label,
                duration(row.base_s) if row.base_s else "0",
                *(_signed(delta) for delta in row.deltas_s),
            ]
            for row in rows
        ]
        sums = [sum(row.deltas_s[i] for row in rows) for i in range(len(names))]
        base_s = sum(row.base_s for row in rows)
        tables[title] = (body, ["the sum", duration(base_s), *(_signed(delta) for delta in sums)])
    return {"account_columns": columns, "accounts": tables}


def _condition_table(content: Content, names: list[str]) -> dict[str, Any]:
    columns = [Column("Condition"), Column("baseline")]
    columns += [Column(_breakable(name)) for name in names]
    rows = [[name, *texts] for name, texts in condition_changes(content)]
    return {"condition_columns": columns, "conditions": rows}


def _tiles(content: Content) -> list[Tile]:
    """Return the headline numbers of the best variant, or of the baseline if none is better."""
    best = find(content, content["answer"]["best"])
    if best is None:
        return []
    tiles = []
    by_slo = content["answer"]["figure"] == "goodput"
    latencies = ("attainment", "goodput", "ttft.p99") if by_slo else ("ttft.p99", "tpot.p99")
    for key in (*latencies, *(() if by_slo else ("e2e.mean",)), "saturation", "gpus"):
        figure = figure_of(content, key)
        value = best["values"].get(key)
        if value is None:
            continue
        note = change_text(best["deltas"][key], figure)
        base = spelled(content["baseline"]["values"][key], figure).removesuffix(" requests/s")
        note = "as before" if note == "same" else f"{base.removesuffix(' GPUs')} before, {note}"
        value_text = spelled(value, figure).removesuffix(" GPUs").removesuffix(" requests/s")
        tiles.append(Tile(label_of(key), value_text, note))
    return tiles


def _warnings(content: Content) -> list[str]:
    texts = [f"{v['name']} changes nothing." for v in ran(content) if v["changes_nothing"]]
    texts += [f"{row.variant}: {row.text}" for row in warning_rows(content)]
    return texts + [f"baseline: {text}" for text in base_warnings(content)]


def _signed(delta_s: float) -> str | Cell:
    if delta_s == 0:
        return "0"
    text = f"{'+' if delta_s > 0 else '-'}{duration(abs(delta_s))}"
    return Cell(text, "loss" if delta_s > 0 else "gain")


def _breakable(name: str) -> str:
    """Allow a browser to break a heading after punctuation."""
    return re.sub(r"([=_,.:/])", "\\1\N{ZERO WIDTH SPACE}", name)
