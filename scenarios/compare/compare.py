"""A result folder against a measured run: every statistic both have, and what differs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.results.run import IN_BUCKETS, LATENCIES, RATES, MeasuredRun
from reports.words import is_number
from scenarios.accuracy import AccuracyFigure
from scenarios.compare.predicted import Predicted
from sim.errors import ScenarioError

METRICS = (*LATENCIES, *RATES)
_UNITS = {"request_throughput": "requests/s", "output_throughput": "tokens/s"}
_BUSY, _SATURATED = 0.5, 0.9
_SAME = 0.02
"""Conditions that differ by no more are the same."""
_FLAGS = (
    "model",
    "gpu",
    "gpus",
    "replicas",
    "tensor_parallel_size",
    "engine",
    "scheduler",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "enable_prefix_caching",
    "shared_prefix_attention",
    "workload",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Figures, what was compared, and what makes the comparison less than fair."""

    figures: list[AccuracyFigure]
    conditions: dict[str, Any]
    warnings: list[str]

    def content(self) -> dict[str, Any]:
        """The JSON output: ``figures``, ``conditions``, ``warnings``."""
        return {
            "figures": [figure.as_dict() for figure in self.figures],
            "conditions": self.conditions,
            "warnings": self.warnings,
        }


def compare(predicted: Predicted, run: MeasuredRun) -> Comparison:
    """Compare mean, p50, p90, p95 and p99 of latencies, and throughput.

    Raises ScenarioError where no statistic is on both sides.
    """
    regime = _regime(predicted)
    figures: list[AccuracyFigure] = []
    left_out: list[str] = []
    for metric in METRICS:
        measured = run.measured(metric)
        before = len(figures)
        for statistic, value in measured.items():
            prediction = predicted.like(metric, statistic, run, value)
            if prediction is None:
                continue
            figures.append(
                AccuracyFigure(
                    run=run.name,
                    regime=regime,
                    metric=metric,
                    statistic=statistic,
                    unit=_UNITS.get(metric, "s"),
                    predicted=prediction.value,
                    measured=value.value,
                    count=value.over,
                    band=prediction.band,
                )
            )
        if measured and len(figures) == before:
            left_out.append(metric)
    if not figures:
        raise ScenarioError(
            f"{run.name}: nothing to compare: {run.completed} completed requests, and no statistic "
            "that the result folder has too"
        )
    return Comparison(
        figures=figures,
        conditions=_conditions(predicted, run),
        warnings=[
            *(
                f"{metric} is measured, but cannot be predicted alike{_why(predicted)}"
                for metric in left_out
            ),
            *_differences(predicted, run),
            *run.notes,
        ],
    )


def _why(predicted: Predicted) -> str:
    return "" if predicted.has_requests else ": that takes requests.parquet, which is not there"


def _regime(predicted: Predicted) -> str:
    """By the share of its saturation rate that the simulated run was offered."""
    load = _saturation(predicted, "load")
    if load is None:
        return "unknown"
    return "light" if load < _BUSY else "busy" if load < _SATURATED else "saturated"


def _saturation(predicted: Predicted, name: str) -> float | None:
    found = predicted.summary.get("saturation")
    value = found.get(name) if isinstance(found, dict) else None
    return value if is_number(value) else None


def _conditions(predicted: Predicted, run: MeasuredRun) -> dict[str, Any]:
    simulated = predicted.summary.get("conditions")
    flags = simulated if isinstance(simulated, dict) else {}
    compared = {
        "latency": f"measured from {run.latency_from}; simulated from arrival, without HTTP and "
        "tokenisation"
    }
    for metric, convention in (("tpot", run.tpot_convention), ("itl", run.itl_convention)):
        if run.measured(metric):
            compared[metric] = convention
    taken = {
        "from the tool's statistics": [m for m in LATENCIES if _is_from_tool(run, m)],
        "from requests": [m for m in LATENCIES if run.measured(m) and not _is_from_tool(run, m)],
    }
    compared |= {how: ", ".join(metrics) for how, metrics in taken.items() if metrics}
    if taken["from the tool's statistics"]:
        compared["the tool's percentiles"] = run.percentiles
    return {
        "compared": compared,
        "simulated": {name: flags[name] for name in _FLAGS if name in flags},
        "measured": {
            "tool": run.tool,
            "run": run.name,
            **run.conditions,
            "completed": run.completed,
            "failed": run.failed,
        },
    }


def _is_from_tool(run: MeasuredRun, metric: str) -> bool:
    return any(measured.is_from_tool for measured in run.measured(metric).values())


def _differences(predicted: Predicted, run: MeasuredRun) -> list[str]:
    """Conditions that visibly differ, a sentence each."""
    found = []
    conditions = predicted.summary.get("conditions")
    simulated = str(conditions.get("model", "")) if isinstance(conditions, dict) else ""
    measured = str(run.conditions.get("model", ""))
    if simulated and measured and _bare(simulated) != _bare(measured):
        found.append(f"the models differ: {simulated} simulated, {measured} measured")
    counts = predicted.summary.get("requests")
    arrived = counts.get("arrived") if isinstance(counts, dict) else None
    sent = run.completed + run.failed
    if is_number(arrived) and arrived != sent:
        found.append(f"the numbers of requests differ: {arrived} simulated, {sent} measured")
    if run.failed:
        found.append(f"{run.failed} requests failed when measured, and are left out")
    rate = predicted.figure("request_throughput")
    for kind, name in (("prompt_tokens", "input"), ("output_tokens", "output")):
        mean = run.mean_tokens(kind)
        total = predicted.figure(f"{name}_throughput")
        if mean is None or rate is None or total is None or not rate.value:
            continue
        of_ours = total.value / rate.value
        if abs(of_ours - mean) > _SAME * mean:
            found.append(
                f"mean {kind.replace('_', ' ')} differ: {of_ours:,.1f} simulated, {mean:,.1f} "
                "measured"
            )
    found += _rate_difference(predicted, run)
    if any(_is_from_tool(run, m) for m in LATENCIES) and run.percentiles == IN_BUCKETS:
        found.append("measured percentiles are no more exact than the buckets of the histograms")
    return found


def _rate_difference(predicted: Predicted, run: MeasuredRun) -> list[str]:
    """Arrivals per second; a nominal rate may differ as much as chance makes it."""
    offered = _saturation(predicted, "offered_per_s")
    slack, measured = _SAME, _arrival_rate(run)
    if measured is None:
        nominal = run.conditions.get("rate")
        measured = nominal if is_number(nominal) else None
        slack += 3 / math.sqrt(max(run.completed + run.failed, 1))  # three deviations of Poisson's
    if offered is None or not measured or abs(offered - measured) <= slack * measured:
        return []
    return [f"the rates differ: {offered:.4g} requests/s simulated, {measured:.4g} measured"]


def _arrival_rate(run: MeasuredRun) -> float | None:
    times = run.arrival_s
    if times is None or run.failed or len(times) < 2 or np.isnan(times).any():
        return None
    span_s = float(times.max() - times.min())
    return (len(times) - 1) / span_s if span_s > 0 else None


def _bare(model: str) -> str:
    """A name without its owner or folder, and whatever its case."""
    return model.rstrip("/").rpartition("/")[2].lower()
