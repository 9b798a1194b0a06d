"""What a search keeps of a run, and its curve: attainment, latencies and state against load.

Of a run it keeps the tally, the latencies, and where slow requests' time went. Only the steady
part of a run counts: requests by their order of arrival, without the first (the system fills) and,
in a closed loop, the last (it empties).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware.uncertainty import host_time_error, step_time_error
from scenarios.build.workload.classes import class_slos
from scenarios.experiments.capacity.question import BLOCKS, Counting, RunPlan
from scenarios.experiments.capacity.search import Samples, Tally
from scenarios.run.result import RunResult
from sim.accounts import TIME_ACCOUNTS
from sim.arrays import Float64
from sim.books.metrics import LATENCIES, TARGETS, RequestMetrics, request_metrics
from sim.books.window import Window, gpu_busy, kv_occupancy, time_weighted
from sim.clock import to_ns
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet
from sim.recorder import UNSET

Bool = NDArray[np.bool_]

_STRETCHES = 10  # stretches of the measured part, for the trend of the number in the system
_LOOKS = 20  # looks per stretch
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """The result of one run for one percentile target: requests by consecutive stretch."""

    good: tuple[int, ...]
    arrived: tuple[int, ...]
    value_s: float
    """The percentile itself, over the requests that arrived; infinite if too few finished."""

    @property
    def share(self) -> float:
        """Share of the arrived requests that were good; 1 if none arrived."""
        arrived = sum(self.arrived)
        return sum(self.good) / arrived if arrived else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that a search keeps of a run; picklable, a few kilobytes."""

    tally: Tally
    simulated: int
    """Requests sent, counted or not."""
    requests: int
    """Measured requests."""
    missed: int
    """Measured requests that were not good."""
    missed_by: dict[str, int]
    """Metric with a target -> finished requests that missed it; ``unfinished``: requests that
    were rejected or never ended."""
    reject_reasons: dict[str, int]
    latency_s: dict[str, dict[str, float]]
    """Metric -> ``p50``, ``p90``, ``p99`` and ``mean`` over measured requests that finished."""
    accounts_s: dict[str, dict[str, dict[str, float]]]
    """Metric -> ``mean`` and ``tail`` -> account -> seconds, for TPOT seconds per token.

    The tail is the slowest requests by that metric, limited to the share that may miss the SLO.
    """
    state: dict[str, float]
    evidence: dict[str, float]
    """Share of the served time by evidence label."""
    errors: tuple[float, float]
    """Relative standard deviation of GPU times and of host times, by their evidence."""
    offered_per_s: float | None
    saturation_per_s: float | None
    slower: tuple[Tally, Tally] | None = None
    """Tallies with a slower GPU and with a slower host."""
    met: tuple[Met, ...] = ()
    """Results target by target, for a plan."""


def measure(result: RunResult, plan: RunPlan) -> RunFacts:
    """Reduce a run to what a capacity search needs."""
    log, metrics = result.log, result.metrics
    counting = plan.counting(plan.level_of(result.scenario))
    counted = counted_requests(metrics, counting)
    window = _window(metrics, counted)
    limit = result.summary["saturation"] or {}
    finished = counted & metrics.finished
    missed_by = {name: int((finished & ~met).sum()) for name, met in metrics.met.items()}
    return RunFacts(
        tally=_tally(log, metrics, counted),
        simulated=len(log.table),
        requests=int(counted.sum()),
        missed=int((counted & ~metrics.good).sum()),
        missed_by=missed_by | {"unfinished": int((counted & ~metrics.finished).sum())},
        reject_reasons=result.summary["requests"]["reject_reasons"],
        latency_s={
            name: _latency(metrics, counted, name)
            for name in TARGETS
            if name in LATENCIES or name in metrics.met
        },
        accounts_s=_accounts(result, counted, 1 - plan.attainment),
        state=_state(log, metrics, counted, window),
        evidence=result.summary["evidence"],
        errors=_errors(result),
        offered_per_s=limit.get("offered_per_s"),
        saturation_per_s=limit.get("saturation_per_s"),
        slower=_slower(result, counting) if plan.slower else None,
    )


def counted_requests(metrics: RequestMetrics, counting: Counting) -> Bool:
    """Return which requests count, as a mask ``[n]``."""
    arrived = np.flatnonzero(metrics.measured)
    order = arrived[np.argsort(metrics.arrival_s[arrived], kind="stable")]
    counted = np.zeros(len(metrics.status), bool)
    counted[order[counting.skip : len(order) - counting.skip_end]] = True
    return counted


def _window(metrics: RequestMetrics, counted: Bool) -> Window:
    """Return the window from the first to the last arrival that counts."""
    arrivals = metrics.arrival_s[counted]
    if not len(arrivals):
        return metrics.window
    return Window(to_ns(float(arrivals.min())), to_ns(float(arrivals.max())))


def _tally(log: RunLog, metrics: RequestMetrics, counted: Bool) -> Tally:
    chosen = np.flatnonzero(counted)
    chosen = chosen[np.argsort(metrics.arrival_s[chosen], kind="stable")]
    blocks = np.array_split(metrics.good[chosen], BLOCKS)
    growth, error, throughput = _flow(log, metrics, _window(metrics, counted), len(chosen))
    return Tally(
        good=tuple(int(block.sum()) for block in blocks),
        arrived=tuple(len(block) for block in blocks),
        growth=growth,
        growth_error=error,
        throughput=throughput,
    )


def _flow(
    log: RunLog, metrics: RequestMetrics, window: Window, arrivals: int
) -> tuple[float, float, float]:
    """Return the growth of the number in the system per arrival, its error, and the leaving
    rate."""
    if not window.length_s or not arrivals:
        return 0.0, 0.0, float("nan")
    left_ns = np.frombuffer(log.requests.finished_ns, np.int64)
    left = np.sort(left_ns[left_ns != UNSET])
    came = np.sort(np.frombuffer(log.requests.arrival_ns, np.int64))
    came = came[np.searchsorted(came, 0) :]  # a horizon ends before some requests are sent
    looks = np.linspace(window.start_ns, window.end_ns, _STRETCHES * _LOOKS + 1)[1:]
    in_system = np.searchsorted(came, looks, "right") - np.searchsorted(left, looks, "right")
    means = in_system.reshape(_STRETCHES, _LOOKS).mean(axis=1)
    at = np.arange(_STRETCHES) - (_STRETCHES - 1) / 2
    slope = float((at * means).sum() / (at**2).sum())
    rest = means - means.mean() - slope * at
    error = float(np.sqrt((rest**2).sum() / (_STRETCHES - 2) / (at**2).sum()))
    leaving = np.searchsorted(left, (window.start_ns, window.end_ns), "right")
    throughput = float(leaving[1] - leaving[0]) / window.length_s
    return slope * _STRETCHES / arrivals, error * _STRETCHES / arrivals, throughput


def _latency(metrics: RequestMetrics, counted: Bool, name: str) -> dict[str, float]:
    values = getattr(metrics, f"{name}_s")[counted & metrics.finished]
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    points = np.percentile(values, PERCENTILES).tolist()
    named = {f"p{p}": value for p, value in zip(PERCENTILES, points, strict=True)}
    return {"mean": float(values.mean()), **named}


def _accounts(
    result: RunResult, counted: Bool, tail_share: float
) -> dict[str, dict[str, dict[str, float]]]:
    books, metrics = result.books, result.metrics
    gaps = np.maximum(result.log.table.output_tokens - 1, 1)[:, None]
    seconds = {
        "ttft": books.ttft_ns / 1e9,
        "tpot": (books.e2e_ns - books.ttft_ns) / gaps / 1e9,
        "e2e": books.e2e_ns / 1e9,
    }
    seconds["itl"] = seconds["tpot"]  # of the requests with the longest gaps
    found = {}
    for name, posted in seconds.items():
        values = getattr(metrics, f"{name}_s")
        chosen = np.flatnonzero(counted & metrics.finished & ~np.isnan(values))
        if not len(chosen):
            continue
        slow = max(1, round(tail_share * len(chosen)))
        tail = chosen[np.argsort(values[chosen], kind="stable")[-slow:]]
        found[name] = {"mean": _by_account(posted[chosen]), "tail": _by_account(posted[tail])}
    return found


def _by_account(posted: Float64) -> dict[str, float]:
    return dict(zip(TIME_ACCOUNTS, posted.mean(axis=0).tolist(), strict=True))


def _state(log: RunLog, metrics: RequestMetrics, counted: Bool, window: Window) -> dict[str, float]:
    """Return what the engines held and did: means over the time that they had work, and maxima."""
    engine = log.pool.engine
    occupied, most_occupied = kv_occupancy(log, window)
    running, _, most_running = time_weighted(log, "running", window)
    waiting, _, most_waiting = time_weighted(log, "waiting", window)
    preempted = np.frombuffer(log.requests.preemptions, np.int32)[counted]
    prompts = int(log.table.prompt_tokens[counted].sum())
    cached = int(np.frombuffer(log.requests.cached_tokens, np.int64)[counted].sum())
    return {
        "gpu_busy": gpu_busy(log, window),
        "running": running,
        "running_max": most_running,
        "waiting": waiting,
        "waiting_max": most_waiting,
        "kv_occupancy": occupied,
        "kv_occupancy_max": most_occupied,
        "preempted_share": float((preempted > 0).mean()) if len(preempted) else 0.0,
        "cached_share": cached / prompts if prompts else 0.0,
        "at_max_num_seqs": _time_share(log, window, "running", engine.running_seq_limit),
        "at_max_num_batched_tokens": _time_share(log, window, "tokens", engine.step_token_limit),
    }


def _time_share(log: RunLog, window: Window, what: str, limit: int) -> float:
    """Return the share of the engines' working time spent in steps that are at a limit."""
    full = total = 0.0
    for steps in log.steps:
        if not len(steps):
            continue
        plan_ns = steps.column("plan_ns")
        end_ns = np.minimum(np.append(plan_ns[1:], log.end_ns), steps.column("gpu_end_ns"))
        held_ns = window.overlap_ns(plan_ns, np.maximum(end_ns, plan_ns))
        if what == "tokens":
            held = steps.column("decode_seqs") + steps.column("prefill_tokens")
            if steps.speculates:
                held = held + steps.column("draft_tokens")
        else:
            held = steps.column(what)
        total += float(held_ns.sum())
        full += float(held_ns[held >= limit].sum())
    return full / total if total else 0.0


def _errors(result: RunResult) -> tuple[float, float]:
    labels = (figure["evidence"] for figure in result.summary["figures"])
    label = next((label for label in labels if label), "assumed")
    return step_time_error(label), host_time_error(result.build.replica.profile.host_evidence.label)


def _slower(result: RunResult, counting: Counting) -> tuple[Tally, Tally]:
    """Tally the same requests on a GPU, then with a host, slower by one standard deviation."""
    scenario, built = result.scenario, result.build
    until_ns = None if scenario.horizon_s is None else to_ns(scenario.horizon_s)
    gpu, host = _errors(result)

    def tally(fleet: Fleet) -> Tally:
        log = run_cluster(result.log.table, fleet, until_ns=until_ns)
        metrics = request_metrics(log, class_slos(scenario), to_ns(scenario.warmup_s))
        return _tally(log, metrics, counted_requests(metrics, counting))

    return (
        tally(built.with_costs(lambda cost: cost.slower(gpu=1 + gpu))),
        tally(built.with_costs(lambda cost: cost.slower(host=1 + host))),
    )


Row = dict[str, Any]


class RunsByLoad(Protocol):
    """The runs of all loads of a search."""

    def of(self, level: float) -> list[RunFacts]:
        """Return the facts of a load, by replication."""
        ...


def curve(samples: Samples, runs: RunsByLoad) -> list[Row]:
    """Return rows in order of load; every number is a mean over the runs of that load."""
    return [_row(level, samples, runs.of(level)) for level in samples.levels]


def nearest(rows: Sequence[Row], level: float, *, stable: bool = False) -> Row:
    """Return the row with the nearest load, among those with many requests.

    With ``stable``, only rows whose queue does not grow count, if there are any.
    """
    rows = [row for row in rows if row["stable"] or not stable] or rows
    most = max(row["requests"] for row in rows)
    many = [row for row in rows if 2 * row["requests"] >= most]
    return min(many, key=lambda row: abs(row["level"] - level))


def _row(level: float, samples: Samples, facts: list[RunFacts]) -> Row:
    _, arrived = samples.counts(level)
    left = fmean(one.tally.throughput for one in facts)
    saturation = [one.saturation_per_s for one in facts if one.saturation_per_s]
    missed = sum(one.missed for one in facts)
    names = facts[0].missed_by
    return {
        "level": level,
        "replications": len(facts),
        "requests": arrived,
        "attainment": samples.attainment(level),
        "interval": list(samples.interval(level)) if arrived else None,
        "stable": samples.is_stable(level),
        "saturation_per_s": fmean(saturation) if saturation else None,
        "throughput_per_s": None if math.isnan(left) else left,
        "missed": missed,
        "missed_by": {name: sum(one.missed_by[name] for one in facts) for name in names},
        "reject_reasons": _counts([one.reject_reasons for one in facts]),
        "latency_s": _means([one.latency_s for one in facts]),
        "accounts_s": _means([one.accounts_s for one in facts]),
        "state": _means([one.state for one in facts]),
        "evidence": _means([one.evidence for one in facts]),
    }


def _counts(every: Sequence[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in every:
        total.update(one)
    return dict(total)


def _means(every: Sequence[Any]) -> Any:
    """Return means of equal structures of numbers, without the keys that some of them lack."""
    if isinstance(every[0], dict):
        keys = [key for key in every[0] if all(key in one for one in every)]
        return {key: _means([one[key] for one in every]) for key in keys}
    return fmean(every)
