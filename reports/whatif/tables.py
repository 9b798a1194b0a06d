"""Tables of a what-if: figures, accounts, warnings and conditions beside the baseline's."""

from __future__ import annotations

import re
from typing import Any

from reports.document import Cell, Column, Row, Table, Tone
from reports.numbers import MISSING, duration, duration_unit, humanised, is_number, listed, sentence
from reports.whatif.figures import account_deltas
from reports.whatif.words import (
    Content,
    Variant,
    change_text,
    label_of,
    ran,
    settings_text,
    tone_of,
    unit_of,
    value_text,
)


def figure_table(content: Content, *, compact: bool) -> Table:
    """Return one row per figure that some variant has: the baseline's value, and each variant's
    with its change. The ``compact`` table is the terminal's: fewer figures, and the evidence."""
    products = content["together"]["figures"]
    compared = [content["baseline"], *ran(content)]
    rows: list[Row] = []
    for figure in content["figures"]:
        key = figure["key"]
        values = [variant["values"].get(key) for variant in compared]
        if not any(is_number(value) for value in values) or _is_dull(figure, values):
            continue
        if compact and not figure["compact"] and key != "availability":
            continue
        unit, per_unit = unit_of(figure, values)
        product = products.get(key, {}).get("product")
        rows.append(
            [
                label_of(key),
                unit,
                Cell(value_text(values[0], figure, per_unit), value=values[0]),
                *(
                    _compared(variant, figure, per_unit)
                    if variant["refused"] is None
                    else Cell(MISSING if rows else "refused", "unsure")
                    for variant in content["variants"]
                ),
                value_text(product, figure, per_unit) if is_number(product) else "",
            ]
        )
    every = (content["baseline"], *content["variants"])
    labels = [variant.get("label") or MISSING for variant in every]  # a refused one has none
    return Table(
        [
            Column("Figure", terminal=""),
            Column("Unit", "note", terminal=""),
            Column("baseline", "number"),
            *_variant_columns(content["variants"]),
            Column("product of singles", "number"),
        ],
        rows,
        lead=3,
        total=["evidence", "", *labels, ""] if compact else None,
        on="terminal" if compact else "page",
    )


def _is_dull(figure: dict[str, Any], values: list[Any]) -> bool:
    """Return whether a figure about a rare event, such as preemption, shows that it never
    happened."""
    dull = {"availability": 1.0, "preemptions": 0.0}
    return figure["key"] in dull and all(value == dull[figure["key"]] for value in values)


def _compared(variant: Variant, figure: dict[str, Any], per_unit: float) -> Cell:
    """Return a variant's value and its change, which is unsure if its interval includes zero."""
    change = variant["deltas"].get(figure["key"]) or {}
    number, text = variant["values"].get(figure["key"]), change_text(change, figure)
    is_same = change.get("delta") == 0 and not change.get("half_width")
    is_unsure = change.get("holds_zero") and not is_same
    tone = "unsure" if is_unsure else tone_of(change, figure["better"])
    return Cell(
        value_text(number, figure, per_unit),
        "" if not is_unsure and text.startswith("0.0") else tone,
        f"~ {text}" if is_unsure else text,
        value=number,
    )


def account_table(content: Content, of: str, title: str) -> Table:
    """Return the baseline's accounts of mean E2E or TTFT and each variant's differences."""
    rows = account_deltas(content, of)
    sums_s = [sum(deltas_s) for deltas_s in zip(*(row.deltas_s for row in rows), strict=True)]
    return Table(
        [Column("Account"), Column("baseline", "number"), *_variant_columns(ran(content))],
        [
            [
                row.label,
                duration(row.base_s) if row.base_s else "0",
                *map(_signed, row.deltas_s),
            ]
            for row in rows
        ],
        title=title,
        total=["the sum", duration(sum(row.base_s for row in rows)), *map(_signed, sums_s)],
        on="page",
    )


_LEAST_SHOWN = 1e-3  # share of mean end-to-end time; smaller accounts are in the page and the JSON


def account_bars(content: Content) -> Table:
    """Return the accounts of mean E2E that are not small, in one unit, with the differences as
    bars."""
    every = account_deltas(content, "e2e")
    total_s = sum(row.base_s for row in every)
    least_s = _LEAST_SHOWN * total_s
    deltas_s = [max(map(abs, row.deltas_s), default=0.0) for row in every]
    kept = zip(every, deltas_s, strict=True)
    rows = [row for row, delta_s in kept if row.base_s > least_s or delta_s > least_s]
    widest_s = max(deltas_s, default=0.0) or 1.0
    unit, per_second = duration_unit([total_s])
    decimals = max(4 - len(f"{total_s * per_second:.0f}"), 1)

    def moved(delta_s: float, share: float | None) -> Cell:
        text = f"{delta_s * per_second:+,.{decimals}f}"
        text = text if text.strip("+-0.") else "0"
        return Cell(text, _tone(delta_s), share=share)

    sums_s = [sum(column) for column in zip(*(row.deltas_s for row in every), strict=True)]
    return Table(
        [
            Column("Account", terminal=""),
            Column("Unit", "note", terminal=""),
            Column("baseline", "number"),
            *_variant_columns(ran(content)),
        ],
        [
            [
                row.label,
                unit,
                f"{row.base_s * per_second:,.{decimals}f}",
                *(moved(delta_s, delta_s / widest_s) for delta_s in row.deltas_s),
            ]
            for row in rows
        ],
        lead=3,
        total=[
            "E2E, the sum",
            unit,
            f"{total_s * per_second:,.{decimals}f}",
            *(moved(sum_s, None) for sum_s in sums_s),
        ],
        on="terminal",
    )


def _signed(delta_s: float) -> Cell:
    if delta_s == 0:
        return Cell("0")
    text = f"{'+' if delta_s > 0 else '-'}{duration(abs(delta_s))}"
    return Cell(text, _tone(delta_s), value=delta_s)


def _tone(delta_s: float) -> Tone:
    return "" if delta_s == 0 else "bad" if delta_s > 0 else "good"


def warning_texts(content: Content) -> list[str | Cell]:
    """Return the warnings of variants that differ from the baseline's, variant by variant, then
    the baseline's own."""
    replications = content["method"]["replications"]
    base = _by_code(content["baseline"], replications)
    texts: list[str | Cell] = [
        f"{variant['name']}: changes nothing; {settings_text(variant)} is so already."
        for variant in ran(content)
        if variant["changes_nothing"]
    ]
    for variant in ran(content):
        name, of_variant = variant["name"], _by_code(variant, replications)
        new = [text for code, text in of_variant.items() if code not in base]
        gone = [code.removesuffix("_beyond") for code in base if code not in of_variant]
        notes = [n for n in variant["notes"] if n not in content["baseline"]["notes"]]
        if variant["changes_demand"]:
            new.insert(0, "Another workload or SLO than the baseline's: it is not among the best.")
        texts += [f"{name}: {sentence(text)}" for text in new]
        texts += [Cell(f"{name}: {sentence(f'no longer: {humanised(c)}')}", "good") for c in gone]
        texts += [f"{name}: {sentence(str(note))}" for note in notes]
    return [*texts, *(f"baseline: {sentence(text)}" for text in base.values())]


def _by_code(variant: Variant, replications: int) -> dict[str, str]:
    """Return warning texts by code. Load beyond saturation gets a code of its own, distinct from
    load near it."""
    texts = {}
    load = variant["values"].get("load")
    for warning in variant["warnings"]:
        code = warning["code"]
        if code == "near_saturation" and is_number(load) and load >= 1:
            code = "near_saturation_beyond"
        texts[code] = warning["text"]
        if replications > 1:
            texts[code] += f" (in {warning['runs']} of {replications} runs; numbers of the first)"
    return texts


# Shown elsewhere, or too long to stand side by side.
_NOT_COMPARED = ("notes", "operators", "calibration_sha256")


def condition_table(content: Content) -> Table:
    """Return the conditions in which variants differ."""
    conditions = [variant["conditions"] for variant in (content["baseline"], *ran(content))]
    rows = []
    for name in conditions[0]:
        texts = [_condition(one.get(name)) for one in conditions]
        if name not in _NOT_COMPARED and len(set(texts)) > 1:
            rows.append([name, *texts])
    names = (_breakable(variant["name"]) for variant in ran(content))
    columns = [Column("Condition"), Column("baseline"), *map(Column, names)]
    return Table(columns, rows)


def _condition(value: object) -> str:
    if isinstance(value, dict):
        return listed(f"{k} {v}" for k, v in value.items() if v is not None) or MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else MISSING if value is None else str(value)


def _variant_columns(variants: list[Variant]) -> list[Column]:
    return [
        Column(_breakable(variant["name"]), "number", terminal=variant["name"])
        for variant in variants
    ]


def _breakable(name: str) -> str:
    """Allow a browser to break a heading after punctuation."""
    return re.sub(r"([=_,.:/])", "\\1\N{ZERO WIDTH SPACE}", name)
