"""Read metrics of a vLLM or SGLang server in Prometheus text, which cover everything since the
server started.

Histograms give exact means, and percentiles by linear interpolation within their buckets; a
percentile beyond the last bucket is unknown. Rates are unknown, since a scrape has no duration.
Engines are added up, and every model becomes a run.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from calibrate.results.run import IN_BUCKETS, MeasuredRun
from calibrate.results.values import as_number, printable
from sim.errors import TraceError, shown

_PREFIXES = {"vllm:": "vLLM", "sglang:": "SGLang"}
_METRICS = {
    "ttft": ("time_to_first_token_seconds",),
    "tpot": ("request_time_per_output_token_seconds",),
    # The second is the older name of the first.
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2e": ("e2e_request_latency_seconds",),
}
_LENGTHS = {
    "prompt_tokens": "request_prompt_tokens",
    "output_tokens": "request_generation_tokens",
}
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_COUNTERS = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
_TOTALS = {"prompt_tokens": "prompt_tokens", "output_tokens": "generation_tokens"}
"""Counters of all requests, which give mean lengths where no histogram does (SGLang)."""
_SUCCEEDED = ("stop", "length")
_SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class _Histogram:
    """Cumulative counts up to each bound, in the metric's unit. The last bound may be infinite."""

    counts: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    total: float = 0.0
    count: float = 0.0


@dataclass(slots=True)
class _Samples:
    """Samples of one model's server."""

    engine: str = ""
    histograms: dict[str, _Histogram] = field(default_factory=lambda: defaultdict(_Histogram))
    counters: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    finished: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Number of requests by finish reason."""


def looks_like_prometheus(text: str) -> bool:
    """Return whether a line is a sample of a server's metric."""
    return any(text.startswith(prefix) or f"\n{prefix}" in text for prefix in _PREFIXES)


def read_prometheus(text: str, path: Path) -> list[MeasuredRun]:
    """Read a run for each model. Raises `TraceError` naming file, line and metric."""
    models: dict[str, _Samples] = defaultdict(_Samples)
    for number, line in enumerate(text.split("\n"), 1):
        prefix = next((prefix for prefix in _PREFIXES if line.startswith(prefix)), None)
        if prefix is None:
            continue  # comments, and metrics of the process
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            raise TraceError(
                f"{path}, line {number}: {shown(line)}; expected a metric, its labels and a value"
            )
        labels = dict(_LABEL.findall(match["labels"] or ""))
        name = match["name"].removeprefix(prefix)
        model = printable(labels.get("model_name", "model"))
        models[model].engine = _PREFIXES[prefix]
        _add(models[model], f"{path}, line {number}", name, labels, match["value"])
    if not models:
        raise TraceError(f"{path}: no metric whose name starts with {' or '.join(_PREFIXES)}")
    return [_run(samples, model, path) for model, samples in models.items()]


def _add(samples: _Samples, where: str, name: str, labels: dict[str, str], text: str) -> None:
    known = {*_LENGTHS.values(), *(name for names in _METRICS.values() for name in names)}
    base, _, part = name.rpartition("_")
    counter = name.removesuffix("_total")
    is_histogram = base in known and part in ("bucket", "sum", "count")
    counted = (*_COUNTERS, *_TOTALS.values(), "num_requests", "request_success")
    if not is_histogram and counter not in counted:
        return
    value = as_number(_float(text))
    if value is None:
        raise TraceError(f"{where}: {name} is {shown(text)}; expected a number, 0 or more")
    if counter in counted and counter != "request_success":
        samples.counters[counter] += value
    elif counter == "request_success":
        samples.finished[labels.get("finished_reason", "stop")] += value
    elif part == "bucket":
        bound = _float(labels.get("le", ""))
        if bound is None or not bound >= 0:
            raise TraceError(f"{where}: le is {shown(labels.get('le'))}; expected a bucket's bound")
        samples.histograms[base].counts[bound] += value
    elif part == "sum":
        samples.histograms[base].total += value
    else:
        samples.histograms[base].count += value


def _run(samples: _Samples, model: str, path: Path) -> MeasuredRun:
    summary: dict[tuple[str, str], float] = {}
    for metric, names in _METRICS.items():
        name = next((name for name in names if name in samples.histograms), None)
        if name is not None:
            of_metric = _statistics(samples.histograms[name], f"{path}: {name}")
            summary |= {(metric, statistic): value for statistic, value in of_metric.items()}
    for kind, name in _LENGTHS.items():
        lengths = samples.histograms.get(name)
        if lengths is not None and lengths.count:
            summary[kind, "mean"] = lengths.total / lengths.count
    counters = samples.counters
    finished = samples.finished
    completed = sum(finished.get(reason, 0.0) for reason in _SUCCEEDED)
    if not finished and "e2e_request_latency_seconds" in samples.histograms:
        completed = samples.histograms["e2e_request_latency_seconds"].count
    completed = completed or counters.get("num_requests", 0.0)
    for kind, name in _TOTALS.items():
        if (kind, "mean") not in summary and completed and name in counters:
            summary[kind, "mean"] = counters[name] / completed
    return MeasuredRun(
        name=model,
        tool=f"{samples.engine} metrics",
        conditions={"model": model, **{n: counters[n] for n in _COUNTERS if n in counters}},
        latency_from="arrival",
        percentiles=IN_BUCKETS,
        summary=summary,
        completed=int(completed),
        failed=int(sum(finished.values()) - sum(finished.get(r, 0.0) for r in _SUCCEEDED)),
        notes=("the metrics are of all requests since the server started, warm-up too",),
    )


def _statistics(histogram: _Histogram, where: str) -> dict[str, float]:
    if not histogram.count:
        return {}
    found = {"mean": histogram.total / histogram.count}
    bounds = sorted(histogram.counts)
    counts = [histogram.counts[bound] for bound in bounds]
    if any(later < earlier for earlier, later in itertools.pairwise(counts)):
        raise TraceError(f"{where}: bucket counts fall; expected them to grow with le")
    for name, share in _PERCENTILES.items():
        rank, lower, below = share * histogram.count, 0.0, 0.0
        for bound, count in zip(bounds, counts, strict=True):
            if count >= rank and count > below:
                if bound < float("inf"):
                    inside = (rank - below) / (count - below)
                    found[name] = lower + (bound - lower) * inside
                break
            lower, below = bound, count
    return found


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
