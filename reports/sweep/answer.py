"""Sentences that answer a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.numbers import listed, target
from reports.sweep.facts import axis_keys, kept_points, nearest_points, row_of
from reports.sweep.folder import Content
from reports.sweep.words import (
    axis_label,
    axis_value,
    in_a_sentence,
    settings_text,
    small,
    value_text,
)

if TYPE_CHECKING:
    import pandas as pd


def heading(content: Content) -> str:
    """Name what was swept: ``Llama-3.1-8B on H200, over request rate and GPU``."""
    keys, base = axis_keys(content), content["base"]
    parts = [base[key] for key in ("model", "hardware.gpu") if key in base]
    labels = listed(small(axis_label(key, keys)) for key in keys)
    return f"{' on '.join(parts) or content['name']}, over {labels}"


def headline(content: Content, points: pd.DataFrame) -> str:
    """Say which point is best, or that no point meets the requirement."""
    choice = content["choice"]
    if choice is None:
        return "No point was run to its end."
    ranking = kept_points(content)
    if not ranking:
        required = f" keeps {choice['require']}" if choice["require"] else " has that figure"
        return f"None of {choice['measured']:,} points{required}."
    best, keys = row_of(points, ranking[0]), axis_keys(content)
    value = value_text(content, choice["best"], best[choice["best"]])
    extreme = "Lowest" if choice["better"] == "lower" else "Highest"
    return f"{extreme} {in_a_sentence(choice['best'])}: {value}, with {settings_text(best, keys)}."


def reason(content: Content, points: pd.DataFrame) -> str:
    """Say how many points meet the requirement, and how far behind the second best is."""
    choice, ranking = content["choice"], kept_points(content)
    if choice is None:
        return ""
    sentences = []
    if choice["require"]:
        sentences.append(
            f"{choice['kept']:,} of {choice['measured']:,} points keep {choice['require']}"
            f"{_slo_text(content)}{_queue_text(choice)}."
        )
    if not ranking:
        sentences.append(_nearest(content, points))
    elif len(ranking) > 1:
        first, second = (row_of(points, point) for point in ranking[:2])
        values, keys = [first[choice["best"]], second[choice["best"]]], axis_keys(content)
        changed = [k for k in keys if axis_value(first[k]) != axis_value(second[k])]
        away = abs(values[1] / values[0] - 1) if values[0] else 0.0
        sentences.append(
            f"The next, with {settings_text(second, changed)}, has "
            f"{value_text(content, choice['best'], values[1])}"
            + (
                f", {away:.1%} {'more' if values[1] > values[0] else 'less'}."
                if away >= 5e-4
                else "."
            )
        )
    return " ".join(sentence for sentence in sentences if sentence)


def alerts(content: Content, table: pd.DataFrame) -> list[str]:
    """Return the warnings that a reader must see."""
    texts = []
    if content["missing"]:
        texts.append(
            f"The sweep is not complete: {content['missing']:,} of {content['runs']:,} runs are "
            "missing. The same command goes on."
        )
    failed = table[table["status"] != "done"]["point"].nunique()
    if failed:
        texts.append(f"{failed:,} of {content['points']:,} points could not be run; see below.")
    return texts


def best_note(content: Content, points: pd.DataFrame) -> str:
    """Say if the best point lies at an end of an axis, where a wider sweep may find a better
    one."""
    ranking = kept_points(content)
    if not ranking:
        return ""
    keys, ends = axis_keys(content), []
    for axis in content["axes"]:
        key = axis["key"]
        if not axis["leads"]:
            continue
        values = sorted(set(points[key])) if points[key].dtype.kind in "if" else []
        at = row_of(points, ranking[0])[key]
        if len(values) > 2 and at in (values[0], values[-1]):
            end = "lowest" if at == values[0] else "highest"
            ends.append(f"the {end} {axis_label(key, keys)} that was tried")
    return (
        f"The best point is at {listed(ends)}: a wider axis may hold a better one." if ends else ""
    )


def _slo_text(content: Content) -> str:
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
    aims = [
        f"{names[name]} ≤ {target(value)}"
        for name, value in content["slo"].items()
        if name in names and value is not None
    ]
    return f" ({', '.join(aims)})" if aims else ""


def _queue_text(choice: dict[str, Any]) -> str:
    return " and a queue that does not grow" if choice["growing"] else ""


def _nearest(content: Content, points: pd.DataFrame) -> str:
    """Describe the point with the highest attainment, for when no point meets the requirement."""
    if "attainment" not in points or points["attainment"].isna().all():
        return ""
    point = row_of(points, nearest_points(points)[0])
    share = value_text(content, "attainment", point["attainment"])
    where = settings_text(point, axis_keys(content))
    return f"The highest {in_a_sentence('attainment')} is {share}, with {where}."
