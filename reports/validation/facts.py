"""Rows of accuracy.json that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from reports.numbers import (
    LATENCY_LABELS,
    MISSING,
    duration_unit,
    is_number,
    listed,
    percent,
    significant,
)
from sim.books.metrics import LATENCIES

Content = dict[str, Any]

_GOOD, _FAIR = 0.05, 0.15  # repeats of a real engine differ by 5% at p50, 10% at p99


class Cell(NamedTuple):
    """An error as text, with a tone: ``good``, ``fair``, ``poor`` or empty."""

    text: str
    tone: str


class StepRow(NamedTuple):
    """Errors of the controlled steps of one kind. ``held_out`` and ``held_out_median`` are the
    count and median of the held-out steps."""

    key: str
    kind: str
    num_points: int
    median: Cell
    p95: Cell
    worst: Cell
    bias: str
    within: str
    held_out: str
    held_out_median: Cell


def error_cell(error: object, *, signed: bool = True) -> Cell:
    """Write a relative error as a percentage, or a dash if nothing was measured."""
    if not is_number(error):
        return Cell(MISSING, "")
    size = abs(error)
    tone = "good" if size <= _GOOD else "fair" if size <= _FAIR else "poor"
    return Cell(f"{error:+.1%}" if signed else f"{error:.1%}", tone)


def step_rows(content: Content) -> list[StepRow]:
    """Return one row per engine key and kind of step."""
    scores = {(s["key"], s["kind"], s["half"]): s for s in content["steps"]}
    rows = []
    for (key, kind, half), score in scores.items():
        if half != "all":
            continue
        held_out = scores.get((key, kind, "held_out"))
        rows.append(
            StepRow(
                key=key,
                kind="all kinds" if kind == "all" else kind,
                num_points=score["count"],
                median=error_cell(score["median_abs"], signed=False),
                p95=error_cell(score["p95_abs"], signed=False),
                worst=error_cell(score["worst_abs"], signed=False),
                bias=f"{score['bias']:+.1%}",
                within=percent(score["within"]),
                held_out=str(held_out["count"]) if held_out else "0",
                held_out_median=error_cell(held_out and held_out["median_abs"], signed=False),
            )
        )
    return rows


def conformance_rows(content: Content) -> list[list[str]]:
    """Return (run, steps, share of steps composed equally, share with equal prefix hits, columns
    that differ)."""
    rows = []
    for score in content["conformance"]:
        columns = [f"{n} {percent(s)}" for n, s in score["by_column"].items() if s not in (1, None)]
        shares = [
            percent(share) if is_number(share) else MISSING
            for share in (score["equal"], score["cached_equal"])
        ]
        run = f"{score['key']}:{score['run']}"
        rows.append([run, f"{score['steps']:,}", *shares, ", ".join(columns)])
    return rows


def block_rows(content: Content) -> list[tuple[str, str, str, Cell]]:
    """Return (key, predicted, recorded, error) of the number of KV blocks."""
    return [
        (f["run"].partition(":")[0], *triple(f))
        for f in content["figures"]
        if f["metric"] == "num_gpu_blocks"
    ]


def absolute_errors(figures: Iterable[dict[str, Any]], metrics: Iterable[str]) -> list[float]:
    """Return the absolute errors of the figures of some metrics."""
    chosen = [f["error"] for f in figures if f["metric"] in set(metrics)]
    return [abs(error) for error in chosen if is_number(error)]


def headline(content: Content) -> str:
    """Give the answer in one or two sentences."""
    said = []
    below = [f for f in content["figures"] if f["regime"] in ("light", "busy")]
    above = [f for f in content["figures"] if f["regime"] == "saturated"]
    for words, figures in (("Below saturation", below), ("In overload", above)):
        errors = absolute_errors(figures, LATENCIES)
        if errors:
            said.append(
                f"{words}, half of the latency figures are within {median(errors):.1%} of "
                f"measured, the worst is {max(errors):.0%} off."
            )
    points = [abs(point["error"]) for point in content["step_points"]]
    if points:
        said.append(
            f"Half of {len(points)} controlled steps are within {median(points):.1%} of measured."
        )
    equal = [score["equal"] for score in content["conformance"] if is_number(score["equal"])]
    if equal:
        least = min(equal)
        runs = "every run" if len(equal) > 1 else "the run"
        share = "all" if least == 1 else f"at least {percent(least)}"
        said.append(f"The scheduler composes {share} of the steps of {runs} as recorded.")
    return " ".join(said) or "Only the KV blocks were scored."


def condition_rows(content: Content) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return (key, [(name, value)]) of each recorded engine."""
    return [
        (key, [(name, _plain(value)) for name, value in conditions.items() if name != "runs"])
        for key, conditions in content["conditions"].items()
    ]


def triple(figure: dict[str, Any] | None, factor: float = 1.0) -> tuple[str, str, Cell]:
    """Return a figure's predicted and measured values, times ``factor``, and its error."""
    if figure is None:
        return MISSING, MISSING, Cell(MISSING, "")
    written = [
        f"{value:,.0f}" if factor == 1 and float(value).is_integer() else significant(value)
        for value in (figure["predicted"] * factor, figure["measured"] * factor)
    ]
    return written[0], written[1], error_cell(figure["error"])


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        labels = dict.fromkeys(str(label) for label in value.values())
        return ", ".join(labels)
    return f"{value:,}" if isinstance(value, int) else str(value)


PERCENTILES = ("p50", "p90", "p99")
REGIMES = ("light", "busy", "saturated")


class LatencyRow(NamedTuple):
    """One latency of one run: (predicted, measured, error) at each percentile, in ``unit``."""

    run: str
    metric: str
    unit: str
    triples: list[tuple[str, str, Cell]]


class LoadRow(NamedTuple):
    """Load of a run: (predicted, measured, error) by metric."""

    run: str
    regime: str
    load: str
    triples: list[tuple[str, str, Cell]]


LOAD_COLUMNS = (
    ("request_throughput", "mean", "req/s"),
    ("running", "mean", "running"),
    ("running", "max", "most"),
)
"""(metric, statistic, header) of each triple in a load row."""


class GlanceRow(NamedTuple):
    """Errors of a regime's figures: the median and the worst absolute error per metric."""

    regime: str
    runs: str
    cells: list[tuple[Cell, str]]


GLANCE_COLUMNS = ("TTFT", "TPOT", "E2E", "throughput")


def run_names(content: Content) -> list[str]:
    """Return the serving runs that were scored, as ``key:run``."""
    names = (f["run"] for f in content["figures"] if f["metric"] in LATENCIES)
    return list(dict.fromkeys(names))


def latency_rows(content: Content) -> list[LatencyRow]:
    """Return one row per run and latency, in the order of the runs."""
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
    """Return one row per run with its load."""
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
    """Return the load, regime and loop of a run."""
    key, _, name = run.partition(":")
    conditions: dict[str, Any] = content["conditions"].get(key, {}).get("runs", {}).get(name, {})
    return conditions


def glance_rows(content: Content) -> list[GlanceRow]:
    """Return one row per regime that has a run."""
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
    """Say what a reader must know about a run to interpret its figures."""
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
