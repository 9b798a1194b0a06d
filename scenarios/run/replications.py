"""Independent replications: one scenario with several seeds, and the confidence of the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from scenarios.schema import Scenario

LEVEL = 0.95
"""Confidence level of the intervals."""

_SUMMED = ("arrived", "finished", "rejected", "failed", "unfinished")
_AVERAGED = ("e2e_accounts_s", "ttft_accounts_s", "step_accounts_s")


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """Return one replication of a scenario, with its own seed."""
    return scenario.model_copy(update={"seed": seed, "replications": 1})


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of the mean of independent values; needs at least two."""
    from scipy.special import stdtrit

    n = len(values)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * stdev(values) / math.sqrt(n)
    return fmean(values) - half, fmean(values) + half


def combine(summary: dict[str, Any], others: Sequence[dict[str, Any]], scenario: Scenario) -> None:
    """Fold the summaries of other replications into the first one, in place."""
    every = [summary, *others]
    for figures in zip(*(_by_name(s) for s in every), strict=True):
        _combine_figure(*figures)
    for of_class in zip(*(s["classes"] for s in every), strict=True):
        _combine_class(*of_class)
    requests = [s["requests"] for s in every]
    reasons: dict[str, int] = {}
    for reason, count in (item for r in requests for item in r["reject_reasons"].items()):
        reasons[reason] = reasons.get(reason, 0) + count
    summary["requests"] = {name: sum(r[name] for r in requests) for name in _SUMMED}
    if any("abandoned" in r for r in requests):
        summary["requests"]["abandoned"] = sum(r.get("abandoned", 0) for r in requests)
    summary["requests"]["reject_reasons"] = reasons
    summary["slo"] = _mean([s["slo"] for s in every])
    for name in _AVERAGED:
        if name in summary:
            summary[name] = _mean([s[name] for s in every])
    known = {warning["code"] for warning in summary["warnings"]}
    for warning in (w for s in others for w in s["warnings"]):
        if warning["code"] not in known:
            known.add(warning["code"])
            summary["warnings"].append(warning)
    summary["replications"] = {
        "count": len(every),
        "first_seed": scenario.seed,
        "confidence": LEVEL,
    }


def _by_name(summary: dict[str, Any]) -> list[dict[str, Any]]:
    of_classes = [figure for c in summary["classes"] for figure in c["figures"]]
    figures: list[dict[str, Any]] = summary["figures"] + of_classes
    return figures


def _combine_figure(first: dict[str, Any], *others: dict[str, Any]) -> None:
    every = [first, *others]
    values = [figure["value"] for figure in every if figure["value"] is not None]
    if first["count"] is not None:
        first["count"] = sum(figure["count"] or 0 for figure in every)
    if len(values) < len(every):  # a replication without the figure would bias the mean
        first["value"] = None
        return
    first["value"] = fmean(values)
    first["interval"] = list(t_interval(values))


def _combine_class(first: dict[str, Any], *others: dict[str, Any]) -> None:
    every = [first, *others]
    for name in ("arrived", "finished"):
        first[name] = sum(one[name] for one in every)
    for name in ("attainment", "goodput_per_s", "by_target"):
        first[name] = _mean([one[name] for one in every])


def _mean(every: Sequence[Any]) -> Any:
    """Return the mean of equal structures, number by number; None where a number is missing."""
    if isinstance(every[0], dict):
        keys = [key for key in every[0] if all(key in one for one in every)]
        return {key: _mean([one[key] for one in every]) for key in keys}
    return fmean(every) if all(one is not None for one in every) else None
