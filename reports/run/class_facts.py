"""Request classes side by side: who met which targets."""

from __future__ import annotations

from typing import Any

from reports.facts import Summary, entries, figures_by_name
from reports.parts import Column
from reports.words import LATENCY_LABELS, MISSING, duration, is_number, percent, significant, target

COLUMNS = (
    Column("Class"),
    Column("Requests", "n"),
    Column("Good", "n"),
    Column("Goodput", "n"),
    Column("TTFT p99", "n"),
    Column("TPOT p99", "n"),
    Column("E2E p99", "n"),
    Column("Targets, and who met them", "over"),
)


def class_rows(summary: Summary) -> list[tuple[str, ...]]:
    """A row of texts a class, one for each of ``COLUMNS``; empty where there are no classes."""
    return [_row(facts) for facts in entries(summary, "classes") if isinstance(facts, dict)]


def has_class_targets(summary: Summary) -> bool:
    """Whether any class has a target of its own or of the scenario."""
    return any(facts.get("targets") for facts in entries(summary, "classes"))


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    attainment, goodput = facts.get("attainment"), facts.get("goodput_per_s")
    figures = figures_by_name(facts)
    p99 = (figures.get(name, {}).get("p99", {}).get("value") for name in ("ttft", "tpot", "e2e"))
    return (
        str(facts.get("name")),
        f"{facts.get('arrived', 0):,}",
        percent(attainment) if is_number(attainment) else MISSING,
        f"{significant(goodput)}/s" if is_number(goodput) else MISSING,
        *(duration(value) for value in p99),
        _targets_text(facts),
    )


def _targets_text(facts: dict[str, Any]) -> str:
    met = facts.get("by_target") or {}
    said = []
    for name, target_s in (facts.get("targets") or {}).items():
        metric = name.removesuffix("_s")
        share = f" {percent(met[metric])}" if is_number(met.get(metric)) else ""
        said.append(f"{LATENCY_LABELS.get(metric, metric)} ≤ {target(target_s)}:{share}")
    return ", ".join(said) or "none: finishing is enough"
