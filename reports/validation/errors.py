"""Errors of a validation, and the sentences that sum them up."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from reports.document import Cell, Tone
from reports.numbers import MISSING, is_number, percent
from sim.books.metrics import LATENCIES

Content = dict[str, Any]
"""Content of accuracy.json."""

PERCENTILES = ("p50", "p90", "p99")
_GOOD, _FAIR = 0.05, 0.15  # repeats of a real engine differ by 5% at p50, 10% at p99


def error_cell(error: object, *, signed: bool = True) -> Cell:
    """Write a relative error as a percentage, or a dash if nothing was measured."""
    if not is_number(error):
        return Cell(MISSING)
    size = abs(error)
    tone: Tone = "good" if size <= _GOOD else "fair" if size <= _FAIR else "bad"
    return Cell(f"{error:+.1%}" if signed else f"{error:.1%}", tone)


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


def run_names(content: Content) -> list[str]:
    """Return the serving runs that were scored, as ``key:run``."""
    names = (f["run"] for f in content["figures"] if f["metric"] in LATENCIES)
    return list(dict.fromkeys(names))
