"""Compare a result folder with a measured run: every statistic that both have, and differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrate.results.run import (
    IN_BUCKETS,
    ITL_MEANS,
    LATENCIES,
    LINEAR,
    RATES,
    TPOT_INCLUDES,
    Measured,
    MeasuredRun,
)
from reports.folder import read_requests, read_summary
from reports.numbers import is_number
from scenarios.files.messages import nearest
from scenarios.validation.accuracy import AccuracyFigure
from sim.books.metrics import statistics
from sim.errors import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

_OF_REQUESTS = ("ttft", "tpot", "e2e")


class Prediction(NamedTuple):
    """A predicted value in seconds or per second, and its relative 90% band if there is one."""

    value: float
    band: tuple[float, float] | None


class Predicted:
    """A result folder: the figures of its summary, and its requests where they are needed."""

    def __init__(
        self, summary: dict[str, Any], read: Callable[[], pd.DataFrame] | None = None
    ) -> None:
        self.summary = summary
        self._read = read
        self._figures = {
            (figure["name"], str(figure.get("statistic"))): figure for figure in summary["figures"]
        }

    @property
    def has_requests(self) -> bool:
        """Whether requests.parquet exists, so that other conventions can be computed."""
        return self._read is not None

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The finished requests of the result folder."""
        assert self._read is not None
        requests = self._read()
        return requests[requests["status"] == "finished"]

    def figure(self, name: str, statistic: str = "value") -> Prediction | None:
        """Return a figure of the summary; None if it has no number."""
        figure = self._figures.get((name, statistic))
        if figure is None or not is_number(figure.get("value")):
            return None
        band = figure.get("band")
        is_pair = isinstance(band, list) and len(band) == 2 and all(map(is_number, band))
        return Prediction(figure["value"], (band[0], band[1]) if is_pair else None)

    def like(
        self, metric: str, statistic: str, run: MeasuredRun, measured: Measured
    ) -> Prediction | None:
        """Return a statistic by the run's conventions for TPOT, ITL and percentiles.

        Returns None if it cannot be computed. Raises `ScenarioError` for a damaged
        requests.parquet.
        """
        figure = self.figure(metric, statistic)
        if not measured.is_from_tool:
            return figure
        convention = {"tpot": run.tpot_convention, "itl": run.itl_convention}.get(metric)
        if convention in (TPOT_INCLUDES, ITL_MEANS):
            return self._by_tokens(metric, statistic)
        if run.percentiles != LINEAR or metric not in _OF_REQUESTS or statistic == "mean":
            return figure
        if figure is None or not self.has_requests:
            return figure
        values = self.finished[f"{metric}_s"].to_numpy(np.float64)
        share = int(statistic.removeprefix("p")) / 100
        return Prediction(float(np.quantile(values[~np.isnan(values)], share)), figure.band)

    def _by_tokens(self, metric: str, statistic: str) -> Prediction | None:
        """Return a statistic over requests: e2e/tokens weighted by tokens, or TPOT weighted by
        gaps."""
        if not self.has_requests:
            return None
        tokens = self.finished["output_tokens"].to_numpy(np.int64)
        if metric == "tpot":
            e2e_s = self.finished["e2e_s"].to_numpy(np.float64)
            values, weights = e2e_s / np.maximum(tokens, 1), tokens
        else:
            values, weights = self.finished["tpot_s"].to_numpy(np.float64), tokens - 1
        kept = weights > 0
        found = statistics(values[kept], weights[kept])[statistic]
        return None if found is None else Prediction(found, None)


def read_predicted(path: Path) -> Predicted:
    """Read a result folder, or its summary.json. Raises `ScenarioError`."""
    if path.is_file() and path.name != "summary.json":
        raise ScenarioError(f"{path}: expected a result folder, or the summary.json in one")
    folder = path.parent if path.is_file() else path
    summary = read_summary(folder)
    if not isinstance(summary.get("figures"), list):
        raise ScenarioError(f"{folder / 'summary.json'}: has no figures; run the scenario again")
    has_requests = (folder / "requests.parquet").is_file()
    return Predicted(summary, (lambda: read_requests(folder)) if has_requests else None)


METRICS = (*LATENCIES, *RATES)
_UNITS = {"request_throughput": "requests/s", "output_throughput": "tokens/s"}
_BUSY, _SATURATED = 0.5, 0.9
_SAME = 0.02
"""Relative difference up to which conditions count as equal."""
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
        """Return the JSON output: ``figures``, ``conditions``, ``warnings``."""
        return {
            "figures": [figure.as_dict() for figure in self.figures],
            "conditions": self.conditions,
            "warnings": self.warnings,
        }


def compare(predicted: Predicted, run: MeasuredRun) -> Comparison:
    """Compare mean, p50, p90, p95 and p99 of latencies, and throughput.

    Raises `ScenarioError` if no statistic is on both sides.
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
            f"{run.name}: nothing to compare: {_count(run)} completed requests, and no statistic "
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
    """Return the regime by the simulated run's offered load, as a share of its saturation rate."""
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
            "completed": _count(run),
            "failed": run.failed,
        },
    }


def _count(run: MeasuredRun) -> int | str:
    return "an unknown number of" if run.completed is None else run.completed


def _is_from_tool(run: MeasuredRun, metric: str) -> bool:
    return any(measured.is_from_tool for measured in run.measured(metric).values())


def _differences(predicted: Predicted, run: MeasuredRun) -> list[str]:
    """Return one sentence for each condition that visibly differs."""
    found = []
    conditions = predicted.summary.get("conditions")
    simulated = str(conditions.get("model", "")) if isinstance(conditions, dict) else ""
    measured = str(run.conditions.get("model", ""))
    if simulated and measured and _bare(simulated) != _bare(measured):
        found.append(f"the models differ: {simulated} simulated, {measured} measured")
    counts = predicted.summary.get("requests")
    arrived = counts.get("arrived") if isinstance(counts, dict) else None
    sent = None if run.completed is None else run.completed + run.failed
    if is_number(arrived) and sent is not None and arrived != sent:
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
    """Compare arrivals per second; a nominal rate may differ by what chance explains."""
    offered = _saturation(predicted, "offered_per_s")
    slack, measured = _SAME, _arrival_rate(run)
    if measured is None:
        nominal = run.conditions.get("rate")
        measured = nominal if is_number(nominal) else None
        # three standard deviations of a Poisson process
        slack += 3 / math.sqrt(max((run.completed or 0) + run.failed, 1))
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
    """Return a model's name without its owner or folder, in lower case."""
    return model.rstrip("/").rpartition("/")[2].lower()


def read_tolerances(texts: Sequence[str]) -> dict[str | None, float]:
    """Return relative tolerances by metric; None is the key for all metrics that are not named.

    Each text is ``0.1`` or ``ttft=0.1``. Raises `ScenarioError`.
    """
    limits: dict[str | None, float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if equals and name not in METRICS:
            raise ScenarioError(f"--tolerance {text}: no metric {name!r}; {nearest(name, METRICS)}")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if not 0 <= limit < math.inf:
            raise ScenarioError(
                f"--tolerance {text}: {value!r} is not a share from 0, such as 0.15"
            )
        limits[name or None] = limit
    return limits


def choose_run(runs: Sequence[MeasuredRun], name: str | None) -> MeasuredRun:
    """Return the run of a name, or the only one. Raises `ScenarioError`."""
    names = ", ".join(run.name for run in runs)
    if name is None:
        if len(runs) > 1:
            raise ScenarioError(
                f"the measurements hold several runs: choose one with --run: {names}"
            )
        return runs[0]
    for run in runs:
        if run.name == name:
            return run
    raise ScenarioError(f"--run {name}: no such run; there are: {names}")


def beyond_tolerance(
    figures: Sequence[AccuracyFigure], limits: dict[str | None, float]
) -> list[str]:
    """Return a line for every figure beyond its tolerance.

    Raises `ScenarioError` for a tolerance of a metric that was not compared.
    """
    compared = {figure.metric for figure in figures}
    for name in limits:
        if name is not None and name not in compared:
            raise ScenarioError(
                f"--tolerance {name}: was not compared; compared were {', '.join(sorted(compared))}"
            )
    lines = []
    for figure in figures:
        limit = limits.get(figure.metric, limits.get(None))
        if limit is not None and abs(figure.error) > limit:
            lines.append(
                f"beyond tolerance: {figure.metric} {figure.statistic} {figure.error:+.1%}, "
                f"allowed {limit:.1%}"
            )
    return lines
