"""whatif.json: every figure of every variant, its change and the change's interval, as plain
values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from reports.schemas import WHATIF
from scenarios.experiments.whatif.changes import Variant
from scenarios.experiments.whatif.figures import (
    FIGURES,
    KEYS,
    SHARES,
    Run,
    Values,
    mean_accounts_ns,
)
from scenarios.experiments.whatif.intervals import Method, paired
from scenarios.files.messages import nearest
from scenarios.run.replications import LEVEL
from sim import __version__
from sim.books.metrics import LATENCIES
from sim.errors import ScenarioError


def run_notes(runs: Sequence[Run]) -> dict[str, Any]:
    """Return ``warnings`` ({code, text, runs}) and ``notes`` of the runs.

    Each text comes from the first run that has it, so a number in it is that run's. The warning
    that a percentile rests on few samples is left out if there are several runs, because intervals
    then show how precise their mean is.
    """
    warnings: dict[str, dict[str, Any]] = {}
    for run in runs:
        for warning in run.summary["warnings"]:
            if warning["code"] == "few_samples" and len(runs) > 1:
                continue
            known = warnings.setdefault(warning["code"], {**warning, "runs": 0})
            known["runs"] += 1
    return {
        "warnings": list(warnings.values()),
        "notes": list(runs[0].summary["conditions"]["notes"]),
    }


_GOOD_ENOUGH = 0.99
"""Attainment from which on an SLO counts as met, and latency or throughput decides."""

_WORTH_SAYING = 1e-3
"""Least gain over an earlier variant to be called best, as a share of the baseline's figure."""

_BETTER = {figure.key: figure.better for figure in FIGURES}


def check_figure(by: str | None) -> None:
    """Raise `ScenarioError` for a figure that cannot decide what is best."""
    known = [figure.key for figure in FIGURES if figure.better]
    if by is not None and by not in known:
        raise ScenarioError(f"--by {by}: not a figure to be best by; {nearest(by, known)}")


def choose_answer(content: dict[str, Any], by: str | None) -> dict[str, Any]:
    """Return the figure that decides, the best variant by it, and the best by capacity per GPU.

    The best has the best figure among those whose interval excludes zero (or that have no
    interval); None if there is none. A variant with another workload or SLO answers another
    question and is never best. On a recorded trace only the figure counts, because the trace is
    fixed and the interval is about other traffic.
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
    """Return the figure that the baseline lacks most, and why, whatever the variants do."""
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


_DEMAND = ("workload", "slo", "warmup_s", "horizon_s")
"""Sections that set the demand and how it is measured; the rest of a scenario serves it."""

Estimates = dict[str, list[float | None]]


def make_content(
    variants: Sequence[Variant],
    runs: Mapping[str, Sequence[Run]],
    method: Method,
    *,
    why_not_together: str,
    by: str | None,
) -> dict[str, Any]:
    """Return everything that the terminal and the page show; ``runs`` are by name of variants
    that ran."""
    baseline, *others = variants
    facts = {name: _facts(of_variant, method) for name, of_variant in runs.items()}
    base_values, base_estimates = facts[baseline.name]
    content: dict[str, Any] = {
        "schema": WHATIF,
        "fleetcast_version": __version__,
        "method": _method(method, runs[baseline.name]),
        "figures": [figure._asdict() for figure in FIGURES],
        "shares": [round(float(share), 6) for share in SHARES],
        "baseline": _variant(baseline, runs, base_values),
        "variants": [],
    }
    for variant in others:
        values, estimates = facts.get(variant.name, ({}, {}))
        entry = _variant(variant, runs, values)
        if variant.refused is None:
            entry["deltas"] = _deltas(base_values, base_estimates, values, estimates, method)
            entry["changes_nothing"] = variant.scenario == baseline.scenario
        content["variants"].append(entry)
    content["together"] = _together(variants, facts, method, why_not_together)
    content["answer"] = choose_answer(content, by)
    return content


def _facts(runs: Sequence[Run], method: Method) -> tuple[Values, Estimates]:
    """Return a variant's figures, and the estimates from which the spread of each is computed."""
    values: Values = {}
    estimates: Estimates = {}
    for key in KEYS:
        of_runs = [run.values[key] for run in runs]
        known = [value for value in of_runs if value is not None]
        # A mean without one of the replications would be biased.
        values[key] = fmean(known) if len(known) == len(runs) else None
        estimates[key] = of_runs if method.independent else runs[0].without_each.get(key, [])
    return values, estimates


def _variant(variant: Variant, runs: Mapping[str, Sequence[Run]], values: Values) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": variant.name,
        "kind": variant.kind,
        "settings": dict(variant.settings),
        "changes_demand": any(key.partition(".")[0] in _DEMAND for key in variant.settings),
        "refused": variant.refused,
    }
    if variant.refused is not None:
        return entry
    of_variant = runs[variant.name]
    first = of_variant[0].summary
    return entry | {
        "values": values,
        "counted": sum(run.counted for run in of_variant),
        "accounts_ns": {name: mean_accounts_ns(of_variant, name) for name in ("e2e", "ttft")},
        "distributions_s": {name: _mean_quantiles(of_variant, name) for name in LATENCIES},
        "evidence": first["evidence"],
        "label": first["label"],
        "requests": first["requests"],
        "shares_prefixes": first["shares_prefixes"],
        "conditions": first["conditions"],
        **run_notes(of_variant),
    }


def _deltas(
    base: Values, base_estimates: Estimates, values: Values, estimates: Estimates, method: Method
) -> dict[str, Any]:
    deltas = {}
    for key in KEYS:
        delta, half = paired(
            lambda of_base, of_variant: of_variant - of_base,
            (base[key], values[key]),
            (base_estimates[key], estimates[key]),
            independent=method.independent,
        )
        deltas[key] = _change(delta, half, base[key])
    return deltas


def _change(delta: float | None, half: float | None, base: float | None) -> dict[str, Any]:
    """Return a change and its half-width, in the figure's unit and relative to the baseline's
    value."""
    relative = delta / base if delta is not None and base else None
    return {
        "delta": delta,
        "half_width": half,
        "relative": relative,
        "relative_half_width": half / abs(base) if half is not None and base else None,
        "holds_zero": None if delta is None or half is None else abs(delta) <= half,
    }


def _together(
    variants: Sequence[Variant],
    facts: Mapping[str, tuple[Values, Estimates]],
    method: Method,
    why_not: str,
) -> dict[str, Any]:
    """Compare all changes at once with the product of the single ones: base x prod(single /
    base)."""
    together = next((variant for variant in variants if variant.kind == "together"), None)
    singles = [variant for variant in variants if variant.joins]
    nothing: dict[str, Any] = {
        "of": [v.name for v in singles],
        "why_no_variant": None,
        "why_no_product": None,
        "figures": {},
    }
    if together is None:
        return nothing | {"why_no_variant": why_not or None}
    refused = [v.name for v in singles if v.refused is not None]
    if refused:
        return nothing | {"why_no_product": f"{', '.join(refused)} cannot be run"}
    if together.refused is not None:
        return nothing
    chosen = [facts[name] for name in (variants[0].name, *(v.name for v in singles), together.name)]

    def product(base: float, *others: float) -> float:
        return base * math.prod(other / base for other in others[:-1])

    def beyond(base: float, *others: float) -> float:
        return others[-1] - product(base, *others)

    by_figure: dict[str, Any] = {}
    for key in (figure.key for figure in FIGURES if figure.multiplies):
        whole = [values[key] for values, _ in chosen]
        known = [value for value in whole if value is not None]
        if len(known) < len(whole) or not known[0]:
            continue
        parts = [estimates[key] for _, estimates in chosen]
        gap, half = paired(beyond, whole, parts, independent=method.independent)
        by_figure[key] = {"product": product(*known)} | _change(gap, half, known[0])
        most = _most(key, chosen[0][0], chosen[-1][0])
        if most is not None and by_figure[key]["product"] > most:
            by_figure[key]["most"] = most
    return nothing | {"figures": by_figure}


def _most(key: str, base: Values, whole: Values) -> float | None:
    """Return the most that a rate can come to, because no more requests arrive; None: no limit."""
    load, saturation, served = (base[name] for name in ("load", "saturation", "request_throughput"))
    if load is None or saturation is None or not served:
        return None
    offered = load * saturation
    per_request = {
        "goodput": 1.0,
        "request_throughput": 1.0,
        "output_throughput": (base["output_throughput"] or 0.0) / served,
        "goodput_per_gpu": 1.0 / (whole["gpus"] or 1.0),
    }
    return offered * per_request[key] if key in per_request else None


def _method(method: Method, runs: Sequence[Run]) -> dict[str, Any]:
    sections = max((len(values) for values in runs[0].without_each.values()), default=0)
    return {
        "kind": "replications" if method.independent else "sections" if sections else "none",
        "replications": len(method.seeds),
        "first_seed": method.seeds[0],
        "sections": sections or None,
        "is_recorded": method.is_recorded,
        "confidence": LEVEL,
    }


def _mean_quantiles(runs: Sequence[Run], name: str) -> list[float]:
    """Return the mean over runs of each quantile, with six digits, which suffice for plots."""
    known = [run.quantiles_s[name] for run in runs if run.quantiles_s[name]]
    return [float(f"{fmean(at):.6g}") for at in zip(*known, strict=True)]
