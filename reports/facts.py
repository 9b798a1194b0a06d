"""Rows and sentences that a run's terminal summary and its page share."""

from __future__ import annotations

from typing import Any, NamedTuple

from reports.numbers import (
    LATENCY_LABELS,
    THROUGHPUT_LABELS,
    UTILIZATION_LABELS,
    count_of,
    duration_unit,
    humanised,
    is_number,
    number,
    sentence,
    significant,
    spread,
    spreads,
    unit_text,
)
from reports.numbers import MISSING as MISSING
from reports.warning_codes import GRAVE
from sim.books.metrics import STATISTICS
from sim.evidence import LABELS

Summary = dict[str, Any]


class LatencyRow(NamedTuple):
    """One latency metric as text, all statistics in one unit."""

    label: str
    name: str
    cells: tuple[str, ...]
    """One text per statistic of ``STATISTICS``."""
    values_s: tuple[float | None, ...]
    unit: str
    population: str
    evidence: str
    spreads: list[tuple[str, ...]]
    """Lines of ``±5%`` to print below the cells, with one text per statistic of ``STATISTICS``;
    see `reports.numbers.spreads`."""


class GaugeRow(NamedTuple):
    """One figure that is not a latency: its value or mean, and its maximum if it has one."""

    label: str
    value: str
    maximum: str
    unit: str
    population: str
    evidence: str
    spread: str = ""
    """Spread of the value, as explained by `reports.numbers.spread_note`."""


class AccountRow(NamedTuple):
    """Seconds of one time account, and its share of the total."""

    account: str
    label: str
    seconds: float
    share: float


def section(summary: Summary, *keys: str) -> dict[str, Any]:
    """Return a nested object of the summary, or an empty one if it is absent or null."""
    value: Any = summary
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def entries(summary: Summary, key: str) -> list[Any]:
    """Return a list of the summary, or an empty one if it is absent or null."""
    value = summary.get(key)
    return value if isinstance(value, list) else []


def figures_by_name(summary: Summary) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures as name -> statistic -> figure, in the order of the summary."""
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for figure in entries(summary, "figures"):
        statistic = str(figure.get("statistic") or "value")
        by_name.setdefault(figure["name"], {})[statistic] = figure
    return by_name


def value_of(summary: Summary, name: str, *statistics: str) -> float | None:
    """Return the first of the given statistics of a figure that is a finite number, else None."""
    figures = figures_by_name(summary).get(name, {})
    for statistic in statistics or ("value", "mean"):
        value = figures.get(statistic, {}).get("value")
        if is_number(value):
            return value
    return None


def weakest_evidence(figures: list[dict[str, Any]]) -> str:
    """Return the weakest evidence label of the figures. A label that is not in ``LABELS`` ranks
    below all others."""
    labels = [str(figure["evidence"]) for figure in figures if figure.get("evidence")]
    rank = {label: index for index, label in enumerate(LABELS)}
    return max(labels, key=lambda label: rank.get(label, len(rank)), default=MISSING)


def latency_rows(summary: Summary) -> list[LatencyRow]:
    """Return the latency metrics that the summary has: the known ones in their usual order, then
    any others in seconds."""
    by_name = figures_by_name(summary)
    names = [name for name in LATENCY_LABELS if name in by_name]
    names += [name for name in by_name if name not in names and _is_latency(by_name[name])]
    rows = []
    for name in names:
        figures = by_name[name]
        values = [figures.get(statistic, {}).get("value") for statistic in STATISTICS]
        unit, per_second = duration_unit(values)
        cells = [
            significant(value * per_second) if is_number(value) else MISSING for value in values
        ]
        rows.append(
            LatencyRow(
                label=LATENCY_LABELS.get(name, humanised(name)),
                name=name,
                cells=tuple(cells),
                values_s=tuple(value if is_number(value) else None for value in values),
                unit=unit if any(is_number(value) for value in values) else "",
                population=_population(figures),
                evidence=weakest_evidence(list(figures.values())),
                spreads=spreads(figures),
            )
        )
    return rows


def throughput_rows(summary: Summary) -> list[GaugeRow]:
    """Return the rows of rates and of fractions of requests."""
    return _gauge_rows(summary, THROUGHPUT_LABELS)


def utilization_rows(summary: Summary) -> list[GaugeRow]:
    """Return the rows that say how busy the engines are."""
    return _gauge_rows(summary, UTILIZATION_LABELS)


def other_rows(summary: Summary) -> list[GaugeRow]:
    """Return a row per statistic of each figure that no other table of the report shows."""
    known = {*LATENCY_LABELS, *THROUGHPUT_LABELS, *UTILIZATION_LABELS}
    rows = []
    for name, figures in figures_by_name(summary).items():
        if name in known or _is_latency(figures):
            continue
        for statistic, figure in figures.items():
            suffix = "" if statistic == "value" else f", {statistic}"
            rows.append(_gauge_row(humanised(name) + suffix, name, [figure], figure, {}))
    return rows


def account_rows(summary: Summary, key: str) -> list[AccountRow]:
    """Return the non-zero accounts of e.g. ``e2e_accounts_s`` or ``step_accounts_s``, in the
    order of the summary."""
    seconds = {
        account: value
        for account, value in section(summary, key).items()
        if is_number(value) and value != 0
    }
    total_s = sum(seconds.values())
    if total_s <= 0:
        return []
    return [
        AccountRow(account, humanised(account), value, value / total_s)
        for account, value in seconds.items()
    ]


def evidence_shares(summary: Summary) -> list[tuple[str, float]]:
    """Return the share of simulated time by evidence label, strongest label first."""
    rank = {label: index for index, label in enumerate(LABELS)}
    shares = [
        (label, share)
        for label, share in section(summary, "evidence").items()
        if is_number(share) and share > 0
    ]
    return sorted(shares, key=lambda item: rank.get(item[0], len(rank)))


def warning_texts(summary: Summary, *, grave: bool | None = None) -> list[str]:
    """Return the warnings as sentences, in the order given. ``grave`` selects only those whose
    code is, or is not, in ``GRAVE``."""
    texts = (
        str(warning.get("text") or warning.get("code") or "")
        for warning in entries(summary, "warnings")
        if isinstance(warning, dict) and grave in (None, warning.get("code") in GRAVE)
    )
    return [sentence(text) for text in texts if text]


def _is_latency(figures: dict[str, dict[str, Any]]) -> bool:
    in_seconds = all(figure.get("unit") == "s" for figure in figures.values())
    return in_seconds and any(statistic in figures for statistic in ("p50", "p90", "p99"))


def _population(figures: dict[str, dict[str, Any]]) -> str:
    for figure in figures.values():
        text = count_of(figure.get("count"), figure.get("population"))
        if text:
            return text
    return ""


def _gauge_rows(summary: Summary, labels: dict[str, str]) -> list[GaugeRow]:
    by_name = figures_by_name(summary)
    rows = []
    for name, label in labels.items():
        figures = by_name.get(name, {})
        if not figures:
            continue
        main = figures.get("value") or figures.get("mean") or next(iter(figures.values()))
        maximum = figures.get("max", {})
        rows.append(_gauge_row(label, name, list(figures.values()), main, maximum))
    return rows


def _gauge_row(
    label: str,
    name: str,
    figures: list[dict[str, Any]],
    main: dict[str, Any],
    maximum: dict[str, Any],
) -> GaugeRow:
    unit = str(main.get("unit") or "")
    return GaugeRow(
        label=label,
        value=number(main.get("value"), unit),
        maximum=number(maximum["value"], unit) if is_number(maximum.get("value")) else "",
        unit=unit_text(name, unit),
        population=count_of(main.get("count"), main.get("population")),
        evidence=weakest_evidence(figures),
        spread=spread(main),
    )
