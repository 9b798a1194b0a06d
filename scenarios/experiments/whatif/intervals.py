"""What a what-if's intervals come from: replications, or sections of a single run.

For sections, a figure is computed without each section in turn. A section is an equal number of
consecutive requests for latencies and attainment, and an equal span of the measured window for
rates and states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scenarios.build.workload.table import build_table
from scenarios.run.replications import LEVEL
from scenarios.run.result import RunResult
from scenarios.schema import Scenario
from sim.arrays import Float64
from sim.books.metrics import LATENCIES, statistics
from sim.books.window import Window, gpu_busy, kv_occupancy
from sim.errors import ScenarioError

# Total simulated requests above which a what-if with default settings uses fewer replications: half
# a minute of one core.
_REQUESTS_IN_ALL = 200_000
_MOST, _FEWEST = 10, 3


@dataclass(frozen=True, kw_only=True)
class Method:
    """The seeds with which each variant is simulated."""

    seeds: tuple[int, ...]
    is_recorded: bool
    """Whether requests come from a trace, so that they are equal for all seeds."""

    @property
    def independent(self) -> bool:
        """Whether there are replications; otherwise the one run is cut into sections."""
        return len(self.seeds) > 1


def choose_method(scenario: Scenario, num_scenarios: int, replications: int | None) -> Method:
    """Choose the number of replications: as asked for, or by the size of the workload.

    A recorded trace runs once. Raises `ScenarioError` for replications of a trace, and for fewer
    than one.
    """
    recorded = _is_recorded(scenario)
    if replications is not None and replications < 1:
        raise ScenarioError(f"--replications {replications}: must be at least 1")
    if recorded:
        if replications is not None and replications > 1:
            raise ScenarioError(
                f"--replications {replications}: the requests of a recorded trace are the same "
                "whatever the seed, so replications would say nothing of how sure a difference "
                "is; leave the option out, and intervals come from sections of the one run"
            )
        replications = 1
    elif replications is None and scenario.replications > 1:
        replications = scenario.replications
    elif replications is None:
        affordable = _REQUESTS_IN_ALL // (num_scenarios * max(len(build_table(scenario)), 1))
        # With two replications Student's t is 12.7; a run that long has enough requests to be cut.
        replications = min(affordable, _MOST) if affordable >= _FEWEST else 1
    seeds = tuple(scenario.seed + i for i in range(replications))
    return Method(seeds=seeds, is_recorded=recorded)


def _is_recorded(scenario: Scenario) -> bool:
    workload = scenario.workload
    return any(source.trace is not None for source in (workload, *workload.classes))


Estimates = list[float | None]


def num_sections(requests: int, statistic: str = "mean") -> int:
    """Return the number of sections to cut a run into; 0: too few requests for an interval.

    Sections must be long against the time over which latencies depend on each other, and there must
    be enough values beyond a percentile. Tried on M/D/1 queues at 60 and 80% load, whose
    differences are known: for the mean, ten sections of 200 requests cover it in 91 to 95% of
    cases, five of 200 in 88 to 92%. For a p99, five sections cover it in 87 to 90% of cases with
    10,000 requests, in 92 to 95% with 20,000, and in 60 to 80% with 1,000.
    """
    if statistic == "p99":
        return 5 if requests >= 10_000 else 0
    return 10 if requests >= 2_000 else 5 if requests >= 1_000 else 0


def without_each(items: NDArray[np.int64], sections: int) -> list[NDArray[np.int64]]:
    """Return the items in order without the first, second, ... of ``sections`` equal sections."""
    cuts = np.array_split(items, sections)
    return [np.concatenate([*cuts[:i], *cuts[i + 1 :]]) for i in range(sections)]


def values_without_each(result: RunResult, *, has_slo: bool) -> dict[str, Estimates]:
    """Return figure by key -> its value without each section; {} if the run is too short to cut."""
    requests = int(result.metrics.measured.sum())
    if not num_sections(requests):
        return {}
    estimates = _of_requests(result) | _of_time(result, num_sections(requests))
    if not has_slo:
        for key in ("attainment", "goodput"):
            del estimates[key]
    gpus = result.summary["conditions"]["gpus"]
    for name in ("goodput", "output_throughput"):
        if name in estimates:
            estimates[f"{name}_per_gpu"] = [_per(value, gpus) for value in estimates[name]]
    return estimates


def _of_requests(result: RunResult) -> dict[str, Estimates]:
    metrics = result.metrics
    measured = np.flatnonzero(metrics.measured)
    estimates: dict[str, Estimates] = {}
    for wanted in (("mean", "p50", "p90"), ("p99",)):
        sections = num_sections(len(measured), wanted[0])
        kept = without_each(measured, sections) if sections else []
        for name in LATENCIES if kept else ():
            values_s = np.where(metrics.counted, getattr(metrics, f"{name}_s"), np.nan)
            found = [statistics(values_s[chosen]) for chosen in kept]
            for statistic in wanted:
                estimates[f"{name}.{statistic}"] = [values[statistic] for values in found]
    kept = without_each(measured, num_sections(len(measured)))
    for key, verdicts in (("attainment", metrics.good), ("availability", metrics.finished)):
        estimates[key] = [float(verdicts[chosen].mean()) for chosen in kept]
    return estimates


def _of_time(result: RunResult, sections: int) -> dict[str, Estimates]:
    log, metrics = result.log, result.metrics
    window = metrics.window
    edges_ns = np.linspace(window.start_ns, window.end_ns, sections + 1).astype(np.int64)
    spans = [Window(int(a), int(b)) for a, b in pairwise(edges_ns)]
    finished_ns = np.frombuffer(log.requests.finished_ns, np.int64)
    inside = metrics.finished & (finished_ns >= window.start_ns) & (finished_ns <= window.end_ns)
    good = metrics.good & metrics.measured
    outputs, prompts = log.table.all_output_tokens, log.table.prompt_tokens

    def rate(chosen: NDArray[np.bool_], amounts: NDArray[np.int64] | None = None) -> Estimates:
        """Return the rate of finished amounts per second without each span.

        What finished after the window counts towards its last span.
        """
        span = np.searchsorted(edges_ns[1:-1], finished_ns[chosen], "left")
        weights = None if amounts is None else amounts[chosen]
        totals = np.bincount(span, weights, minlength=sections)
        return [_per(mean, spans[0].length_s) for mean in _means_without(totals.tolist())]

    def occupancy(span: Window, busy: float) -> float:
        """Return the mean share of KV blocks held while an engine had work; 0 for an idle span."""
        return kv_occupancy(log, span)[0] if busy else 0.0

    busy = [gpu_busy(log, span) for span in spans]
    gpus = result.summary["conditions"]["gpus"]
    all_tokens = rate(inside, prompts + outputs)
    held = [occupancy(*pair) for pair in zip(spans, busy, strict=True)]
    return {
        "request_throughput": rate(inside),
        "output_throughput": rate(inside, outputs),
        "goodput": rate(good),
        "total_throughput_per_gpu": [_per(value, gpus) for value in all_tokens],
        "gpu_busy": [*_means_without(busy)],
        "kv_occupancy.mean": [*_means_without(held)],
    }


def _means_without(values: Sequence[float]) -> list[float]:
    total = sum(values)
    return [(total - value) / (len(values) - 1) for value in values]


def _per(value: float | None, divisor: float) -> float | None:
    return value / divisor if value is not None and divisor else None


def half_width(estimates: Sequence[float] | Float64, *, independent: bool = True) -> float | None:
    """Return half of the 95% t interval around a figure, from several estimates of it.

    The estimates are either ``independent``, one per replication, or each is taken from one run
    without one of its sections (the jackknife over groups: Shao and Tu, The Jackknife and
    Bootstrap, 1995, 2.3). For a mean and sections of equal size, the latter gives the interval of
    batch means; for a percentile it does not need sections that are alike, which those of a trace
    with busy and quiet hours are not. Returns None for fewer than two estimates, or if one is not
    finite.
    """
    from scipy.special import stdtrit

    values = np.asarray(estimates, float)
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return None
    squares = float(((values - values.mean()) ** 2).sum())
    variance = squares / (n * (n - 1)) if independent else squares * (n - 1) / n
    return float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(variance)


def paired(
    function: Callable[..., float],
    whole: Sequence[float | None],
    parts: Sequence[Sequence[float | None]],
    *,
    independent: bool,
) -> tuple[float | None, float | None]:
    """Return a function of several variants' figure, and the half-width of its interval.

    ``whole`` holds each variant's figure, ``parts`` the estimates of it that `half_width` takes.
    All variants share random numbers, so the function is applied to estimates of the same
    replication, or without the same section, and what they have in common cancels.
    """
    known = [value for value in whole if value is not None]
    if len(known) < len(whole):
        return None, None
    value = function(*known)
    if len({len(part) for part in parts}) > 1 or not all(parts):
        return value, None
    if any(estimate is None for part in parts for estimate in part):
        return value, None
    try:
        estimates = [function(*estimates) for estimates in zip(*parts, strict=True)]
    except ZeroDivisionError:
        return value, None
    return value, half_width(estimates, independent=independent)
