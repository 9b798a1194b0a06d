"""The figures of summary.json: each with its unit, and over what and how many it is taken."""

from __future__ import annotations

from typing import Any

import numpy as np

from scenarios.build import Build
from sim.cluster import RunLog
from sim.metrics import (
    RequestMetrics,
    gpu_busy,
    itl_statistics,
    time_weighted,
    window_s,
)
from sim.percentiles import STATISTICS, statistics

_LATENCIES = ("ttft", "tpot", "e2e", "queue")

Figure = dict[str, Any]
"""name, statistic, value (None where there is none), unit, population, count.

``count`` is how many the population has; None where it is a span of time."""


def run_figures(log: RunLog, metrics: RequestMetrics, build: Build) -> list[Figure]:
    """All figures of a run, in the order they are shown."""
    return latency_figures(log, metrics) + rate_figures(log, metrics, build) + state_figures(log)


def latency_figures(log: RunLog, metrics: RequestMetrics) -> list[Figure]:
    """Statistics of latencies, in seconds."""
    figures = []
    for name in _LATENCIES:
        values = np.where(metrics.finished, getattr(metrics, f"{name}_s"), np.nan)
        count = int((~np.isnan(values)).sum())
        figures += _figures(name, statistics(values), "s", "finished requests", count)
    itl, gaps = itl_statistics(log)
    return figures + _figures("itl", itl, "s", "gaps between tokens of finished requests", gaps)


def rate_figures(log: RunLog, metrics: RequestMetrics, build: Build) -> list[Figure]:
    """Rates over the measured window, and shares of requests and of prompts."""
    window, finished = window_s(log), metrics.finished
    table, requests = log.table, log.requests
    gpus = log.pool.replicas * build.cost.shard.tensor_parallel_size
    outputs, prompts = (int(c[finished].sum()) for c in (table.output_tokens, table.prompt_tokens))
    cached = int(np.frombuffer(requests.cached_tokens, np.int64)[finished].sum())
    arrived, num_finished = num_arrived(metrics), int(finished.sum())
    num_good = int(metrics.good.sum())

    def rate(name: str, amount: float, unit: str) -> Figure:
        value = amount / window if window else None
        return _figure(name, value, unit, f"measured window of {window:.6g} s", None)

    of_arrived = ("fraction", "arrived requests", arrived)
    of_prompts = ("prompts of finished requests", num_finished)
    busy = gpu_busy(log) if window else None
    return [
        rate("request_throughput", num_finished, "requests/s"),
        rate("input_throughput", prompts, "tokens/s"),
        rate("output_throughput", outputs, "tokens/s"),
        rate("total_throughput_per_gpu", (prompts + outputs) / gpus, "tokens/s"),
        rate("goodput", num_good, "requests/s"),
        _figure("attainment", share(num_good, arrived), *of_arrived),
        _figure("availability", share(num_finished, arrived), *of_arrived),
        _figure(
            "gpu_busy",
            busy,
            "fraction",
            f"measured window of {window:.6g} s, mean over replicas",
            None,
        ),
        _figure("cache_hit_tokens", cached, "tokens", *of_prompts),
        _figure("cache_hit_fraction", share(cached, prompts), "fraction", *of_prompts),
        _figure("preemptions", int(sum(requests.preemptions)), "count", "all requests", arrived),
    ]


def state_figures(log: RunLog) -> list[Figure]:
    """What the engines held while they had work, mean over time and maximum; none if never."""
    over = "time an engine had work, per replica"
    if not any(len(steps) for steps in log.steps):
        return []
    figures = []
    for name in ("running", "waiting"):
        mean, highest = time_weighted(log, name)
        figures += [
            _figure(name, mean, "requests", over, None, "mean"),
            _figure(name, highest, "requests", over, None, "max"),
        ]
    usable = log.pool.engine.num_gpu_blocks - 1
    free_mean, _ = time_weighted(log, "free_blocks")
    free_least = min(int(steps.column("free_blocks").min()) for steps in log.steps if len(steps))
    for free, statistic in ((free_mean, "mean"), (free_least, "max")):
        figures.append(
            _figure("kv_occupancy", 1 - free / usable, "fraction", over, None, statistic)
        )
    return figures


def num_arrived(metrics: RequestMetrics) -> int:
    """Requests that were sent; a horizon may come before some are."""
    return int((~np.isnan(metrics.arrival_s)).sum())


def share(part: float, whole: int) -> float | None:
    """A part of a whole; None where the whole is nothing."""
    return float(part) / whole if whole else None


def _figures(
    name: str, values: dict[str, float | None], unit: str, population: str, count: int
) -> list[Figure]:
    return [_figure(name, values[s], unit, population, count, s) for s in STATISTICS]


def _figure(
    name: str,
    value: float | None,
    unit: str,
    population: str,
    count: int | None,
    statistic: str = "value",
) -> Figure:
    return {
        "name": name,
        "statistic": statistic,
        "value": value,
        "unit": unit,
        "population": population,
        "count": count,
    }
