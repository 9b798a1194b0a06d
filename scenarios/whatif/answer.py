"""Which figure matters, and which change is best by it."""

from __future__ import annotations

from typing import Any

from scenarios.explain import nearest
from scenarios.whatif.figures import FIGURES
from sim.errors import ScenarioError

_GOOD_ENOUGH = 0.99
"""Attainment from which on an SLO counts as met, and latency or throughput decides."""

_WORTH_SAYING = 1e-3
"""Of the baseline's figure: a variant that is better than an earlier one by less is not best."""

_BETTER = {figure.key: figure.better for figure in FIGURES}


def check_figure(by: str | None) -> None:
    """Raise ScenarioError for a figure that cannot decide what is best."""
    known = [figure.key for figure in FIGURES if figure.better]
    if by is not None and by not in known:
        raise ScenarioError(f"--by {by}: not a figure to be best by; {nearest(by, known)}")


def choose_answer(content: dict[str, Any], by: str | None) -> dict[str, Any]:
    """The figure that decides, the best variant by it, and by capacity a GPU.

    Best is the best figure of those whose interval holds no zero (or that have none); None where
    there is none. A variant of another workload or SLO answers another question and is never
    best. On a recorded trace it is the best figure alone: that traffic is as it was, and
    the interval is of other traffic.
    """
    figure, why = (by, "asked for") if by else _figure_that_matters(content)
    per_gpu = "goodput_per_gpu" if figure == "goodput" else "saturation_per_gpu"
    ran = [v for v in (content["baseline"], *content["variants"]) if v["refused"] is None]
    attainments = {v["name"]: v["values"]["attainment"] for v in ran}
    return {
        "figure": figure,
        "why": why,
        "good_enough": _GOOD_ENOUGH,
        "misses_slo": [n for n, a in attainments.items() if a is not None and a < _GOOD_ENOUGH],
        "best": _best(content, figure),
        "per_gpu_figure": per_gpu,
        "best_per_gpu": _best(content, per_gpu),
    }


def _figure_that_matters(content: dict[str, Any]) -> tuple[str, str]:
    """What the baseline is short of decides; a variant that breaks down must not."""
    values = content["baseline"]["values"]
    if values["attainment"] is not None and values["attainment"] < _GOOD_ENOUGH:
        return "goodput", "the baseline misses the SLO for more than 1% of requests"
    if values["load"] is None:
        return "output_throughput", "the workload is a closed loop"
    if values["load"] >= 1:
        return "output_throughput", "the baseline is loaded beyond saturation"
    met = " and meets the SLO" if values["attainment"] is not None else ""
    return "e2e.mean", f"the baseline is below saturation{met}"


def _best(content: dict[str, Any], key: str) -> str | None:
    sign = -1.0 if _BETTER[key] == "lower" else 1.0
    least = _WORTH_SAYING * abs(content["baseline"]["values"][key] or 0.0)
    best, gain = None, 0.0
    for variant in content["variants"]:
        if variant["refused"] is not None or variant["changes_demand"]:
            continue
        change = variant["deltas"][key]
        told_apart = content["method"]["is_recorded"] or not change["holds_zero"]
        if change["delta"] is not None and told_apart and sign * change["delta"] > gain + least:
            best, gain = variant["name"], sign * change["delta"]
    return best
