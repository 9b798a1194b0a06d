"""What accuracy.json says of the serving runs, as rows for tables."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from reports.validation.facts import LATENCIES, Cell, Content, absolute_errors, error_cell, triple
from reports.words import LATENCY_LABELS, MISSING, duration_unit, is_number, listed, percent

PERCENTILES = ("p50", "p90", "p99")
REGIMES = ("light", "busy", "saturated")


class LatencyRow(NamedTuple):
    """One latency of one run: (predicted, measured, error) at each percentile, in ``unit``."""

    run: str
    metric: str
    unit: str
    triples: list[tuple[str, str, Cell]]


class LoadRow(NamedTuple):
    """What a run was served: (predicted, measured, error) by metric."""

    run: str
    regime: str
    load: str
    triples: list[tuple[str, str, Cell]]


LOAD_COLUMNS = (
    ("request_throughput", "mean", "req/s"),
    ("running", "mean", "running"),
    ("running", "max", "most"),
)
"""(metric, statistic, header) of a load row's triples."""


class GlanceRow(NamedTuple):
    """Errors of a regime's figures, one cell a metric: median of the absolute errors and worst."""

    regime: str
    runs: str
    cells: list[tuple[Cell, str]]


GLANCE_COLUMNS = ("TTFT", "TPOT", "E2E", "throughput")


def run_names(content: Content) -> list[str]:
    """The serving runs that were scored, as ``key:run``."""
    names = (f["run"] for f in content["figures"] if f["metric"] in LATENCIES)
    return list(dict.fromkeys(names))


def latency_rows(content: Content) -> list[LatencyRow]:
    """One row a run and latency, in the order of the runs."""
    rows = []
    for run in run_names(content):
        for metric in LATENCIES:
            found = [_figure(content, run, metric, name) for name in PERCENTILES]
            if not any(found):
                continue
            sides = [f[side] for f in found if f for side in ("predicted", "measured")]
            unit, per_second = duration_unit(sides)
            triples = [triple(figure, per_second) for figure in found]
            rows.append(LatencyRow(run, LATENCY_LABELS[metric], unit, triples))
    return rows


def load_rows(content: Content) -> list[LoadRow]:
    """One row a run."""
    rows = []
    for run in run_names(content):
        conditions = run_conditions(content, run)
        triples = [
            triple(_figure(content, run, metric, statistic))
            for metric, statistic, _ in LOAD_COLUMNS
        ]
        load = percent(conditions["load"]) if is_number(conditions.get("load")) else MISSING
        rows.append(LoadRow(run, str(conditions.get("regime", MISSING)), load, triples))
    return rows


def run_conditions(content: Content, run: str) -> dict[str, Any]:
    """Load, regime and loop of a run."""
    key, _, name = run.partition(":")
    conditions: dict[str, Any] = content["conditions"].get(key, {}).get("runs", {}).get(name, {})
    return conditions


def glance_rows(content: Content) -> list[GlanceRow]:
    """One row a regime that has a run."""
    rows = []
    for regime in REGIMES:
        figures = [f for f in content["figures"] if f["regime"] == regime]
        runs = list(dict.fromkeys(f["run"] for f in figures))
        if runs:
            errors = [absolute_errors(figures, [metric]) for metric in LATENCIES]
            errors.append(absolute_errors(figures, ["request_throughput", "output_throughput"]))
            rows.append(GlanceRow(regime, listed(runs), [_median_and_worst(e) for e in errors]))
    return rows


def run_note(content: Content, run: str) -> str:
    """What must be known of a run to read its figures."""
    conditions = run_conditions(content, run)
    parts = []
    if is_number(conditions.get("load")):
        parts.append(f"{conditions['regime']}, {conditions['load']:.0%} of saturation")
    if str(conditions.get("loop", "")).startswith("closed"):
        parts.append("closed loop")
    if conditions.get("scored_from_s"):
        parts.append(
            f"scored from {conditions['scored_from_s']:.1f} s on: the engine stalled before"
        )
    return "; ".join(parts)


def _figure(content: Content, run: str, metric: str, statistic: str) -> dict[str, Any] | None:
    wanted = (run, metric, statistic)
    return next(
        (f for f in content["figures"] if (f["run"], f["metric"], f["statistic"]) == wanted), None
    )


def _median_and_worst(errors: list[float]) -> tuple[Cell, str]:
    if not errors:
        return Cell(MISSING, ""), ""
    return error_cell(median(errors), signed=False), f"{max(errors):.1%}"
