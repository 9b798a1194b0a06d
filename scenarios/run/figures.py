"""The figures of summary.json: each with its unit, its population and the size of that
population."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.build.pools import Build
from scenarios.run.economics import economics_figures
from scenarios.run.engine_sections import speculation_figures
from scenarios.run.utilization import peaks_in_use
from sim.books.metrics import STATISTICS, RequestMetrics, itl_statistics, statistics
from sim.books.window import Window, gpu_busy, kv_occupancy, time_weighted
from sim.fleet.cluster import RunLog

_LATENCIES = ("ttft", "tpot", "e2e", "queue")

Figure = dict[str, Any]
"""name, statistic, value (None where there is none), unit, population, count.

``count`` is the size of the population; None where that is a span of time.
"""


def run_figures(log: RunLog, metrics: RequestMetrics, build: Build) -> list[Figure]:
    """Return all figures of a run, in the order in which they are shown."""
    latencies, rates = latency_figures(log, metrics), rate_figures(log, metrics, build)
    figures = latencies + rates + state_figures(log, metrics.window)
    figures += _peak_figures(log, metrics, build)
    figures += speculation_figures(log, build)
    if build.prices is not None:
        figures += economics_figures(log, metrics, build, build.prices)
    return figures


def _peak_figures(log: RunLog, metrics: RequestMetrics, build: Build) -> list[Figure]:
    """Return the shares of peak arithmetic and memory bandwidth in use; [] where not known."""
    used = peaks_in_use(build, log, metrics.window)
    if used is None:
        return []
    over = "measured window, of steps sampled by GPU time, mean over replicas"
    return [
        _figure("arithmetic_in_use", used.arithmetic, "fraction", over, None),
        _figure("bandwidth_in_use", used.bandwidth, "fraction", over, None),
    ]


def latency_figures(log: RunLog, metrics: RequestMetrics) -> list[Figure]:
    """Return statistics of latencies, in seconds."""
    itl, gaps = itl_statistics(log, metrics)
    of_gaps = _figures("itl", itl, "s", "gaps between tokens of finished requests", gaps)
    return request_latencies(metrics, metrics.measured) + of_gaps


def request_latencies(metrics: RequestMetrics, chosen: NDArray[np.bool_]) -> list[Figure]:
    """Return latency statistics of the finished measured requests in ``chosen`` ``[n]``, in
    seconds."""
    figures = []
    for name in _LATENCIES:
        values = np.where(metrics.counted & chosen, getattr(metrics, f"{name}_s"), np.nan)
        count = int((~np.isnan(values)).sum())
        figures += _figures(name, statistics(values), "s", "finished requests", count)
    return figures


def rate_figures(log: RunLog, metrics: RequestMetrics, build: Build) -> list[Figure]:
    """Return rates over the measured window, and shares of requests and of prompts."""
    window, counted = metrics.window.length_s, metrics.counted
    served = finished_within(log, metrics)
    table, requests = log.table, log.requests
    gpus = sum(part.pool.replicas * part.replica.layout.gpus for part in build.parts)
    outputs, prompts = (
        int(c[served].sum()) for c in (table.all_output_tokens, table.prompt_tokens)
    )
    cached = int(np.frombuffer(requests.cached_tokens, np.int64)[counted].sum())
    preemptions = int(np.frombuffer(requests.preemptions, np.int32)[metrics.measured].sum())
    hit_share = share(cached, int(table.prompt_tokens[counted].sum()))
    arrived, num_counted = num_arrived(metrics), int(counted.sum())
    num_good = int((metrics.good & metrics.measured).sum())

    def rate(name: str, amount: float, unit: str) -> Figure:
        value = amount / window if window else None
        return _figure(name, value, unit, f"measured window of {window:.6g} s", None)

    of_arrived = ("fraction", "arrived requests", arrived)
    of_prompts = ("prompts of finished requests", num_counted)
    busy = gpu_busy(log, metrics.window) if window else None
    return [
        rate("request_throughput", int(served.sum()), "requests/s"),
        rate("input_throughput", prompts, "tokens/s"),
        rate("output_throughput", outputs, "tokens/s"),
        rate("total_throughput_per_gpu", (prompts + outputs) / gpus, "tokens/s"),
        rate("goodput", num_good, "requests/s"),
        _figure("attainment", share(num_good, arrived), *of_arrived),
        _figure("availability", share(num_counted, arrived), *of_arrived),
        _figure(
            "gpu_busy",
            busy,
            "fraction",
            f"measured window of {window:.6g} s, mean over replicas",
            None,
        ),
        _figure("cache_hit_tokens", cached, "tokens", *of_prompts),
        _figure("cache_hit_fraction", hit_share, "fraction", *of_prompts),
        _figure("preemptions", preemptions, "count", "arrived requests", arrived),
    ]


def state_figures(log: RunLog, window: Window) -> list[Figure]:
    """Return what engines held while they had work, as mean over time and maximum; [] if never
    busy."""
    over = "time an engine had work, per replica"
    if not any(len(steps) for steps in log.steps):
        return []
    figures = []
    for name in ("running", "waiting"):
        mean, _, highest = time_weighted(log, name, window)
        figures += [
            _figure(name, mean, "requests", over, None, "mean"),
            _figure(name, highest, "requests", over, None, "max"),
        ]
    for value, statistic in zip(kv_occupancy(log, window), ("mean", "max"), strict=True):
        figures.append(_figure("kv_occupancy", value, "fraction", over, None, statistic))
    return figures


def finished_within(log: RunLog, metrics: RequestMetrics) -> NDArray[np.bool_]:
    """Return which requests got their last token in the measured window, whenever they arrived."""
    finished_ns = np.frombuffer(log.requests.finished_ns, np.int64)
    window = metrics.window
    within: NDArray[np.bool_] = (finished_ns >= window.start_ns) & (finished_ns <= window.end_ns)
    return metrics.finished & within


def num_arrived(metrics: RequestMetrics) -> int:
    """Return the number of measured requests; a horizon may end before some requests are sent."""
    return int(metrics.measured.sum())


def share(part: float, whole: int) -> float | None:
    """Return a part as a fraction of a whole; None if the whole is zero."""
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
